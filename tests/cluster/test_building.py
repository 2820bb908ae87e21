"""What the cluster is built from: the cache, the image archives, and what is said when the machine lacks something."""

import json
import os
import subprocess
import sys
import tarfile
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.cluster import binaries, images, oci
from tests.cluster.cache import content_key, entry
from tests.cluster.dockerfile import copied_files
from tests.cluster.errors import BuildFailed, PrerequisiteMissing

pytestmark = pytest.mark.cluster

_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("STEADYFLEET_CACHE", str(tmp_path))
    return tmp_path


def test_a_failed_build_leaves_no_entry_and_the_next_one_succeeds(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("done")
        raise BuildFailed("no")

    with pytest.raises(BuildFailed):
        entry("thing", "key", fail)
    assert [path.name for path in (cache / "thing").iterdir()] == [".lock"]
    made = entry("thing", "key", lambda folder: None)
    assert list(made.iterdir()) == []


def _build_slowly(cache: str) -> None:
    os.environ["STEADYFLEET_CACHE"] = cache

    def build(folder: Path) -> None:
        with (Path(cache) / "builds").open("a") as log:
            log.write("built\n")
        time.sleep(0.5)
        (folder / "result").write_text("complete")

    assert (entry("thing", "key", build) / "result").read_text() == "complete"


def test_two_builders_at_once_do_the_work_once_and_both_see_all_of_it(cache: Path) -> None:
    builders = [get_context("spawn").Process(target=_build_slowly, args=(str(cache),)) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(timeout=30)
    assert [builder.exitcode for builder in builders] == [0, 0]
    assert (cache / "builds").read_text() == "built\n"


def test_only_the_newest_entries_of_a_name_are_kept(cache: Path) -> None:
    for number in range(4):
        made = entry("thing", str(number), lambda folder: None, keep=2)
        os.utime(made, (number, number))
    assert sorted(path.name for path in (cache / "thing").iterdir() if path.is_dir()) == ["2", "3"]


def test_the_key_follows_content_and_names_but_not_the_place(tmp_path: Path) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "file").write_text("text")
    first, second = tmp_path / "one", tmp_path / "two"
    assert content_key(first) == content_key(second)
    (second / "file").write_text("other")
    assert content_key(first) != content_key(second)
    assert content_key("a", "b") != content_key("ab")


def test_built_programs_are_found_at_once() -> None:
    binaries.build()
    begun = time.monotonic()
    programs = binaries.build()
    assert time.monotonic() - begun < 0.1
    assert programs.path("kubelet").exists()
    assert programs.path("etcd").name == "server"
    with pytest.raises(BuildFailed, match="no program 'kubeadm'"):
        programs.path("kubeadm")


def test_an_image_archive_is_the_same_for_the_same_files_and_names_itself(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "hello").write_text("hello")
    archives: list[Path] = []
    for name in ("first", "second"):
        os.utime(root / "hello", (time.time(), time.time() - len(archives)))
        layer = oci.make_layer(root, tmp_path / f"{name}.layer")
        archives.append(tmp_path / f"{name}.tar")
        oci.write_archive(
            archives[-1], name="localhost/it:1", layers=[layer], config=oci.ImageConfig(command=["/hello"])
        )
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as archive:
        index = json.load(_member(archive, "index.json"))
        (described,) = index["manifests"]
        assert described["annotations"]["io.containerd.image.name"] == "localhost/it:1"
        manifest = json.load(_member(archive, "blobs/" + described["digest"].replace(":", "/")))
        (packed,) = manifest["layers"]
        with tarfile.open(fileobj=_member(archive, "blobs/" + packed["digest"].replace(":", "/"))) as content:
            assert _member(content, "./hello").read() == b"hello"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sources.list", "# comment\ndeb [arch=amd64] http://mirror.example/debian bookworm main\n"),
        ("sources.list.d/debian.sources", "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm sid\n"),
    ],
    ids=["one-line", "deb822"],
)
def test_the_mirror_is_the_machines_own_in_either_format(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_text(text)
    assert images.mirror_of("bookworm", folder=tmp_path) == "http://mirror.example/debian"
    with pytest.raises(PrerequisiteMissing, match="No package source for trixie"):
        images.mirror_of("trixie", folder=tmp_path)


def test_an_image_is_built_again_when_a_file_that_it_copies_changes_and_only_then(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(
        "FROM base AS build\nCOPY --chown=1:1 \\\n  code.py pack*/ /app/\nCOPY --from=build /x /y\n"
    )
    (tmp_path / "packs").mkdir()
    for file in ("code.py", "packs/one.py", "other.py"):
        (tmp_path / file).write_text("")
    assert copied_files(tmp_path / "Dockerfile") == [tmp_path / "code.py", tmp_path / "packs"]


@pytest.mark.parametrize(
    ("fake_go", "message"),
    [
        (None, "Go is missing: install Go 1.21 or newer"),
        ("#!/bin/sh\necho go1.19.8\n", "Go is too old (go1.19.8): install Go 1.21 or newer"),
    ],
    ids=["no-go", "old-go"],
)
def test_a_missing_or_old_go_is_one_line_that_says_what_to_install(
    tmp_path: Path, fake_go: str | None, message: str
) -> None:
    if fake_go:
        (tmp_path / "go").write_text(fake_go)
        (tmp_path / "go").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster", "env"],
        cwd=_REPOSITORY, env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {message}")
    assert len(done.stderr.splitlines()) == 1


def test_without_root_one_line_says_so() -> None:
    program = (
        "import os\nfrom tests.cluster.prerequisites import check_for_nodes\n"
        "os.seteuid(65534)\n"
        "try: check_for_nodes()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=_REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("PrerequisiteMissing The test cluster's nodes need root")
    assert len(done.stdout.splitlines()) == 1


def _member(archive: tarfile.TarFile, name: str) -> "tarfile.ExFileObject":
    file = archive.extractfile(name)
    assert isinstance(file, tarfile.ExFileObject)
    return file
