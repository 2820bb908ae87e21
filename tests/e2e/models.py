"""Model folders on the nodes' own disks, so that one node can read other bytes than the others."""

from __future__ import annotations

import shutil
from pathlib import Path

from steadyfleet_contract.spec import Synthetic
from steadyfleet_probe.synthetic import generate
from steadyfleet_probe.weights import read_weights
from tests.cluster.cluster import Cluster

IN_POD = "/mnt/node/models/tiny"
EXPONENT_BIT = 0x40
"""Of the high byte of a little-endian bfloat16: the highest exponent bit but one below the sign."""


def place_tiny(cluster: Cluster) -> str:
    """The same Tiny model on every node; returns its digest."""
    source = cluster.folder / "tiny"
    generate(Synthetic.TINY, source)
    for node in cluster.nodes:
        target = folder_on(cluster, node.options.name)
        shutil.copytree(source, target, dirs_exist_ok=True)
        readable(target.parent)
    return read_weights(source).digest


def flip_exponent_bit(cluster: Cluster, node: str, *, position: int = -1) -> None:
    """Flips one exponent bit of one weight (by default in the middle of the file). Doing it again repairs it.

    The file is replaced, not edited: a running engine keeps what it has mapped.
    """
    (file,) = folder_on(cluster, node).glob("*.safetensors")
    content = bytearray(file.read_bytes())
    at = len(content) // 2 | 1 if position < 0 else position
    content[at] ^= EXPONENT_BIT
    changed = file.with_suffix(".new")
    changed.write_bytes(content)
    changed.chmod(0o644)
    changed.replace(file)


def folder_on(cluster: Cluster, node: str) -> Path:
    return cluster.node_dir(node) / "models" / "tiny"


def readable(folder: Path) -> None:
    """The pods run as another user."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            continue
        path.chmod(0o755 if path.is_dir() else 0o644)
