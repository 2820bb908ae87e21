"""The GPUs of this pod: who they are, and whether somebody else is using them.

The device plugin names them in NVIDIA_VISIBLE_DEVICES; nvidia-smi, where the container has it, tells the rest. A pod
that has to meet one GPU is given all free ones of its node, since the device plugin picks: it uses the wanted one.
"""

from __future__ import annotations

import csv
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from steadyfleet_contract.report import GPU, Outcome
from steadyfleet_probe.errors import LaunchFailed

_TIMEOUT_SECONDS = 30
_MEBIBYTE = 1024 * 1024

_IN_USE_BYTES = 1024 * _MEBIBYTE
"""A free GPU shows a few hundred MiB of the driver's own; an engine takes most of the card."""

_RELEASE_SECONDS = 20
"""How long the driver may take to give back the memory of a process that was just killed."""

_BASE = ("uuid", "name", "memory.total", "memory.used", "driver_version")
_MORE = (
    "pci.bus_id",
    "vbios_version",
    "compute_cap",
    "mig.mode.current",
    "ecc.mode.current",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.corrected.aggregate.total",
    "ecc.errors.uncorrected.aggregate.total",
    "retired_pages.pending",
    "clocks.max.sm",
    "clocks.max.memory",
    "clocks.current.sm",
    "power.limit",
    "temperature.gpu",
    "pstate",
    "clocks_throttle_reasons.active",
)
"""One unknown field makes nvidia-smi refuse the whole query, so each is asked by itself if the list is refused."""

_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")


@dataclass(frozen=True)
class GPUs:
    found: tuple[GPU, ...]
    used_bytes: int = 0
    """Largest memory in use on one of them."""
    rows: tuple[dict[str, str], ...] = ()
    """What nvidia-smi says of each."""
    visible: str = ""
    """For CUDA_VISIBLE_DEVICES: indices within the container; empty if all GPUs of the pod are used as they come."""
    nameless: int = 0
    """How many GPUs nvidia-smi lists without a UUID: a card that is failing says `[Unknown Error]`."""


def look(environment: Mapping[str, str]) -> GPUs:
    """Never raises: a pod without GPUs or without nvidia-smi has fewer facts."""
    uuids = [match.group() for match in _UUID.finditer(environment.get("NVIDIA_VISIBLE_DEVICES", ""))]
    listed = _query(_BASE)
    rows = tuple(row for row in listed if _UUID.fullmatch(row["uuid"]))
    nameless = len(listed) - len(rows)
    if not rows:
        return GPUs(found=tuple(GPU(uuid=uuid) for uuid in uuids), nameless=nameless)
    instances = [uuid for uuid in uuids if uuid.startswith("MIG-")]
    if instances:
        # nvidia-smi lists the cards: an instance has an id of its own, and the card's memory is also its neighbours'.
        return GPUs(found=tuple(GPU(uuid=uuid, product=rows[0]["name"]) for uuid in instances), rows=rows)
    return GPUs(
        found=tuple(
            GPU(uuid=row["uuid"], product=row["name"], memory_bytes=_bytes(row["memory.total"])) for row in rows
        ),
        used_bytes=max(_bytes(row["memory.used"]) for row in rows),
        rows=rows,
        nameless=nameless,
    )


def describe(gpus: GPUs) -> dict[str, str]:
    """For the fingerprint: `<index>.<field>` -> value."""
    if not gpus.rows:
        return {f"{index}.uuid": gpu.uuid for index, gpu in enumerate(gpus.found)}
    facts: dict[str, str] = {}
    for index, row in enumerate(gpus.rows):
        known = {**row, **_more(row["uuid"])}
        facts |= {f"{index}.{name}": value for name, value in known.items() if name != "memory.used"}
    return facts


def choose(given: GPUs, *, count: int, wanted: str = "") -> GPUs:
    """Those of the given GPUs that the launches use: the wanted one first.

    Raises LaunchFailed with all that were given: GPUNotGiven, or ProbeError if they cannot be told apart.
    """
    uuids = [found.uuid for found in given.found]
    if wanted and wanted not in uuids:
        raise LaunchFailed(
            Outcome.GPU_NOT_GIVEN,
            f"GPU {wanted} was not among the {len(uuids)} given to this pod; it is in use, or no longer in this node",
            gpus=given.found,
        )
    order = sorted(range(len(uuids)), key=lambda index: (uuids[index] != wanted, index))[:count]
    if order == list(range(len(uuids))):
        return given
    if given.nameless:
        # Which index the engine would count for the others is not known: a result could get a wrong GPU's name.
        raise LaunchFailed(
            Outcome.PROBE_ERROR,
            f"nvidia-smi names no UUID for {given.nameless} GPUs of this pod, so none can be chosen",
            gpus=given.found,
        )
    rows = tuple(given.rows[index] for index in order) if len(given.rows) == len(uuids) else given.rows
    return replace(
        given,
        found=tuple(given.found[index] for index in order),
        rows=rows,
        used_bytes=max((_bytes(row["memory.used"]) for row in rows), default=0),
        # By index: older engines take no UUIDs here. nvidia-smi counts in the order of the PCI bus.
        visible=",".join(str(index) for index in order),
    )


def check_free(environment: Mapping[str, str], *, count: int, wanted: str = "") -> GPUs:
    """The GPUs to use, once none of them has memory in use. Raises LaunchFailed (GPUInUse, GPUNotGiven)."""
    until = time.monotonic() + _RELEASE_SECONDS
    while (gpus := choose(look(environment), count=count, wanted=wanted)).used_bytes > _IN_USE_BYTES:
        if time.monotonic() > until:
            raise LaunchFailed(
                Outcome.GPU_IN_USE,
                f"{gpus.used_bytes // _MEBIBYTE} MiB of GPU memory are in use before the start; the GPU is shared or "
                "a process is left on it, so nothing was started",
                gpus=gpus.found,
            )
        time.sleep(0.5)
    return gpus


def _more(uuid: str) -> dict[str, str]:
    if rows := _query(_MORE, uuid):
        return rows[0]
    facts: dict[str, str] = {}
    for name in _MORE:
        for row in _query((name,), uuid):
            facts |= row
    return facts


def _query(fields: tuple[str, ...], uuid: str = "") -> list[dict[str, str]]:
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    if uuid:
        command.append(f"--id={uuid}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    lines = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return [dict(zip(fields, line, strict=True)) for line in lines if len(line) == len(fields)]


def _bytes(mebibytes: str) -> int:
    return int(mebibytes) * _MEBIBYTE if mebibytes.isdecimal() else 0
