"""What differs around two launches. A GPU is accused only if a clean one shares all that is compared here."""

from __future__ import annotations

from collections.abc import Mapping

from steadyfleet_operator.decide.observation import LaunchRecord

COMPARED_SECTIONS = ("versions", "engine", "environment", "gpu", "host")
"""`weights` and `plan` are judged by themselves; they are results, not surroundings."""

PER_LAUNCH = frozenset(
    {
        "gpu.uuid",
        "gpu.index",
        "gpu.serial",
        "gpu.pci_bus_id",
        "gpu.temperature",
        "gpu.clocks_sm",
        "gpu.clocks_mem",
        "gpu.power_draw",
        "gpu.memory_used",
        "gpu.minor",
        "gpu.ecc_errors",
        "gpu.xid",
        "host.hostname",
        "host.boot_id",
        "host.uptime",
        "host.node",
        "host.machine_id",
        "host.load",
        "engine.num_gpu_blocks",
        "engine.num_cpu_blocks",
        "engine.port",
        "engine.instance_id",
        "engine.compile_cache_key",
        "engine.aot_key",
        "engine.cache_dir",
    }
)
"""Facts that are different for each GPU, node or launch by nature: comparing them would explain everything away."""


def differing_keys(one: LaunchRecord, other: LaunchRecord) -> tuple[str, ...]:
    """`section.key` of all that differs, sorted; the image's runtime digest counts as `image.id`."""
    mine, theirs = _facts(one), _facts(other)
    return tuple(sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)))


def named(keys: tuple[str, ...], one: LaunchRecord, other: LaunchRecord, *, limit: int = 3) -> str:
    """The first keys with both values, for a message."""
    mine, theirs = _facts(one), _facts(other)
    shown = ", ".join(
        f"{key} ({mine.get(key, 'absent')[:60]} / {theirs.get(key, 'absent')[:60]})" for key in keys[:limit]
    )
    rest = len(keys) - limit
    return shown + (f" and {rest} more" if rest > 0 else "")


def _facts(launch: LaunchRecord) -> Mapping[str, str]:
    facts = {
        f"{section}.{key}": value
        for section in COMPARED_SECTIONS
        for key, value in launch.fingerprint.get(section, {}).items()
        if f"{section}.{key}" not in PER_LAUNCH
    }
    if launch.image_id:
        facts["image.id"] = launch.image_id
    return facts
