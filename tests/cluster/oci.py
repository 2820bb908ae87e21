"""Writing an OCI image archive (image-spec 1.1) from folders, with the standard library alone.

The result can be read by `ctr image import` and `buildah pull oci-archive:`. Times and owners inside are zero, so the
same folders give the same digests.
"""

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_GZIP_LEVEL = 1
"""The archives never travel: speed counts, size does not."""

_MEDIA = "application/vnd.oci.image"


@dataclass(frozen=True)
class Layer:
    """A compressed layer on disk: its file, its digest and that of the tar inside."""

    file: Path
    digest: str
    diff_id: str


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """What the image says about how it is run."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] | None = None


def architecture() -> str:
    """This machine's architecture in the words of OCI and Go."""
    return {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def make_layer(folder: Path, out: Path) -> Layer:
    """Pack everything below `folder` into the layer file `out`."""
    diff, packed = hashlib.sha256(), hashlib.sha256()
    with out.open("wb") as raw:
        tee = _Hashing(raw, packed)
        with (
            gzip.GzipFile(filename="", fileobj=tee, mode="wb", compresslevel=_GZIP_LEVEL, mtime=0) as compressed,
            tarfile.open(
                fileobj=cast("IO[bytes]", _Hashing(compressed, diff)), mode="w|", format=tarfile.PAX_FORMAT
            ) as tar,
        ):
            tar.add(folder, arcname=".", filter=_without_identity)
    return Layer(file=out, digest=f"sha256:{packed.hexdigest()}", diff_id=f"sha256:{diff.hexdigest()}")


def write_archive(out: Path, *, name: str, layers: Sequence[Layer], config: ImageConfig) -> None:
    """Write the image `name` (fully qualified, with a tag) made of these layers, lowest first."""
    environment = {"PATH": DEFAULT_PATH, **(config.environment or {})}
    running = {
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.command),
        "Env": [f"{key}={value}" for key, value in environment.items()],
    }
    settings = _Blob.of(
        {
            "architecture": architecture(),
            "os": "linux",
            "config": {key: value for key, value in running.items() if value},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            # buildah counts on one entry a layer.
            "history": [{"created_by": "steadyfleet tests/cluster"} for _ in layers],
        }
    )
    manifest = _Blob.of(
        {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.manifest.v1+json",
            "config": {"mediaType": f"{_MEDIA}.config.v1+json", "digest": settings.digest, "size": len(settings.data)},
            "layers": [
                {"mediaType": f"{_MEDIA}.layer.v1.tar+gzip", "digest": layer.digest, "size": layer.file.stat().st_size}
                for layer in layers
            ],
        }
    )
    index = _Blob.of(
        {
            "schemaVersion": 2,
            "manifests": [
                {
                    "mediaType": f"{_MEDIA}.manifest.v1+json",
                    "digest": manifest.digest,
                    "size": len(manifest.data),
                    "platform": {"architecture": architecture(), "os": "linux"},
                    # containerd takes the image's name from the first, buildah the tag from the second.
                    "annotations": {
                        "io.containerd.image.name": name,
                        "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1],
                    },
                }
            ],
        }
    )
    with tarfile.open(out, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", index.data)
        for blob in (settings, manifest):
            _add(tar, _blob_path(blob.digest), blob.data)
        for layer in layers:
            tar.add(layer.file, arcname=_blob_path(layer.digest), filter=_without_identity)


@dataclass(frozen=True)
class _Blob:
    data: bytes
    digest: str

    @classmethod
    def of(cls, value: object) -> "_Blob":
        data = json.dumps(value, sort_keys=True).encode()
        return cls(data=data, digest=f"sha256:{hashlib.sha256(data).hexdigest()}")


class _Sink(Protocol):
    def write(self, data: bytes, /) -> int: ...


class _Hashing:
    """Passes what is written on, and hashes it: as much of a file as gzip and tarfile use for writing."""

    def __init__(self, target: _Sink, digest: "hashlib._Hash") -> None:
        self._target, self._digest = target, digest

    def write(self, data: bytes, /) -> int:
        self._digest.update(data)
        self._target.write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back here."""


def _blob_path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    tar.addfile(entry, io.BytesIO(data))


def _without_identity(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry
