"""The evidence store: what was acknowledged is there after any crash, and what is broken is never fatal."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from steadyfleet_contract.report import GPU
from steadyfleet_contract.spec import LaunchKind
from steadyfleet_operator.decide.observation import VisitRecord
from steadyfleet_operator.errors import EvidenceError, ReportRefused
from steadyfleet_operator.intake.authenticate import Sender
from steadyfleet_operator.intake.index import HOLD_LAUNCHES
from steadyfleet_operator.intake.store import KEEP_LAUNCHES, KEEP_VISITS, EvidenceStore
from steadyfleet_operator.reasons import Reason
from steadyfleet_operator.resource import Purpose
from tests.operator.builders import EPOCH, GPU_A, IMAGE, a_report, probe_spec

CHECK = "c0ffee00-0000-0000-0000-000000000000"
T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Clock:
    """Every look is one second later."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


def sender(*, pod: str = "pod-1", **changes: object) -> Sender:
    base = Sender(
        namespace="serving", check="qwen", check_uid=CHECK, version="stable", purpose=Purpose.SWEEP, slot=0, attempt=1,
        node="gpu-1", node_uid="n-uid", pod_uid=pod, image=IMAGE, image_id="sha256:abc", asked=probe_spec(),
        visit_started_at=T0,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def visit(*, attempt: int = 1, node: str = "gpu-1", message: str = "3 launches reported") -> VisitRecord:
    return VisitRecord(
        namespace="serving", check="qwen", check_uid=CHECK, epoch=EPOCH, version="stable", purpose=Purpose.SWEEP,
        slot=0, attempt=attempt, node=node, node_uid="n-uid", reason=Reason.AS_EXPECTED, message=message,
        started_at=T0, ended_at=T0 + timedelta(seconds=attempt), pod_uid="pod-1", launches=3,
    )  # fmt: skip


async def opened(root: Path) -> EvidenceStore:
    store = EvidenceStore(root, now=Clock())
    await store.open()
    return store


@pytest.fixture
async def store(tmp_path: Path) -> EvidenceStore:
    return await opened(tmp_path / "evidence")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "evidence"


def bundles(root: Path) -> list[Path]:
    return sorted(root.rglob("*.json.gz"))


async def test_a_launch_is_recorded_with_what_the_operator_knows(store: EvidenceStore, root: Path) -> None:
    report = a_report()

    record, duplicate = await store.put_launch(sender(), report)

    assert not duplicate
    assert record.evidence == f"{CHECK}/{EPOCH}/gpu-1/pod-1/launch-0"
    assert (record.node, record.node_uid, record.image_id, record.purpose) == (
        "gpu-1", "n-uid", "sha256:abc", Purpose.SWEEP,
    )  # fmt: skip
    assert (record.gpu, record.product, record.digest, record.full) == (GPU_A, "NVIDIA H100", report.digest, True)
    assert record.received_at == T0 + timedelta(seconds=1)
    assert store.launches(CHECK) == (record,)
    assert [str(path.relative_to(root)) for path in bundles(root)] == [f"{record.evidence}.json.gz"]


async def test_a_bundle_holds_the_report_bit_by_bit(store: EvidenceStore) -> None:
    report = a_report()

    record, _ = await store.put_launch(sender(), report)

    assert await store.read_report(record.evidence) == report


async def test_a_bundle_can_be_read_without_this_program(store: EvidenceStore, root: Path) -> None:
    await store.put_launch(sender(), a_report())

    (path,) = bundles(root)
    head, report = gzip.decompress(path.read_bytes()).splitlines()

    assert json.loads(head)["launch"]["node"] == "gpu-1"
    assert json.loads(report)["schemaVersion"] == 1


async def test_the_same_again_is_a_duplicate_and_changes_nothing(store: EvidenceStore, root: Path) -> None:
    first, _ = await store.put_launch(sender(), a_report())

    again, duplicate = await store.put_launch(sender(), a_report())

    assert (again, duplicate) == (first, True)
    assert len(bundles(root)) == len(store.launches(CHECK)) == 1


async def test_something_else_for_the_same_launch_is_refused(store: EvidenceStore) -> None:
    first, _ = await store.put_launch(sender(), a_report())

    with pytest.raises(ReportRefused) as caught:
        await store.put_launch(sender(), a_report(seed=5))

    assert (caught.value.status, caught.value.field) == (409, "launch")
    assert store.launches(CHECK) == (first,)


async def test_the_same_report_many_times_at_once_is_stored_once(store: EvidenceStore, root: Path) -> None:
    answers = await asyncio.gather(*(store.put_launch(sender(), a_report()) for _ in range(20)))

    assert sorted(duplicate for _, duplicate in answers) == [False] + [True] * 19
    assert len(bundles(root)) == 1


async def test_a_sender_that_hangs_up_leaves_no_file_that_the_index_does_not_know(
    store: EvidenceStore, root: Path
) -> None:
    put = asyncio.create_task(store.put_launch(sender(), a_report()))
    await asyncio.sleep(0)
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put

    _, duplicate = await store.put_launch(sender(), a_report())

    assert duplicate
    assert len(store.launches(CHECK)) == len(bundles(root)) == 1


async def test_a_restart_finds_everything_again(store: EvidenceStore, root: Path) -> None:
    for number in range(3):
        await store.put_launch(sender(pod=f"pod-{number}"), a_report(seed=number, launch=number))
    await store.put_visit(visit())

    again = await opened(root)

    assert again.launches(CHECK) == store.launches(CHECK)
    assert again.visits(CHECK) == store.visits(CHECK)
    assert again.check_uids() == {CHECK}
    assert (await again.put_launch(sender(pod="pod-1"), a_report(seed=1, launch=1)))[1]
    with pytest.raises(ReportRefused):
        await again.put_launch(sender(pod="pod-1"), a_report(seed=9, launch=1))


async def test_a_digest_is_known_once_its_full_decode_is_stored(store: EvidenceStore, root: Path) -> None:
    report, short = a_report(), a_report(seed=7, full=False, launch=1)
    await store.put_launch(sender(), report)
    await store.put_launch(sender(), short)

    for reader in (store, await opened(root)):

        def known(digest: str | None, reader: EvidenceStore = reader, **changes: object) -> bool:
            asked: dict[str, object] = {"epoch": EPOCH, "version": "stable", "kind": LaunchKind.PINNED} | changes
            return reader.known(CHECK, digest=digest or "", **asked)  # type: ignore[arg-type]

        assert known(report.digest)
        assert not known(short.digest)
        assert not known(report.digest, epoch="f" * 16)
        assert not known(report.digest, version="candidate")
        assert not known(report.digest, kind=LaunchKind.AS_SERVED)


async def test_the_first_record_of_a_visit_stays(store: EvidenceStore, root: Path) -> None:
    await store.put_visit(visit(message="first"))

    assert (await store.put_visit(visit(message="second"))).message == "first"

    assert [record.message for record in (await opened(root)).visits(CHECK)] == ["first"]


BROKEN = {
    "empty": b"",
    "half": gzip.compress(b'{"launch": {}}\n' * 100)[:-20],
    "no gzip": b"hello",
    "no json": gzip.compress(b"hello\n"),
    "another record": gzip.compress(b'{"content": "x", "launch": {"node": 1}}\n'),
    "a list": gzip.compress(b"[]\n"),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_bundle_is_set_aside(
    content: bytes, store: EvidenceStore, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, _ = await store.put_launch(sender(), a_report())
    broken = root / CHECK / EPOCH / "gpu-1" / "pod-9" / "launch-0.json.gz"
    broken.parent.mkdir()
    broken.write_bytes(content)

    again = await opened(root)

    assert again.launches(CHECK) == (kept,)
    assert broken.with_name("launch-0.json.gz.broken").exists()
    assert not broken.exists()
    assert str(broken) in caplog.text


async def test_leftovers_of_a_crash_are_cleared(store: EvidenceStore, root: Path) -> None:
    await store.put_launch(sender(), a_report())
    leftover = root / CHECK / EPOCH / "gpu-1" / "pod-1" / ".launch-1.json.gz.abcd.tmp"
    leftover.write_bytes(b"half of a rep")
    (root / "other.deleted" / "x").mkdir(parents=True)

    again = await opened(root)

    assert not leftover.exists()
    assert not (root / "other.deleted").exists()
    assert len(again.launches(CHECK)) == 1


async def test_the_newest_launches_of_each_gpu_stay_and_those_that_a_verdict_needs(
    store: EvidenceStore, root: Path
) -> None:
    other = (GPU(uuid="GPU-b"),)
    first, _ = await store.put_launch(sender(pod="first"), a_report(full=False))
    second, _ = await store.put_launch(sender(pod="second"), a_report(full=False))
    lonely, _ = await store.put_launch(sender(pod="lonely"), a_report(full=False, gpus=other))
    newer = [
        (await store.put_launch(sender(pod=f"pod-{number}"), a_report(full=False)))[0].evidence
        for number in range(KEEP_LAUNCHES)
    ]

    assert await store.prune(CHECK, keep=frozenset({first.evidence})) == 1

    stored = {str(path.relative_to(root)).removesuffix(".json.gz") for path in bundles(root)}
    assert stored == {first.evidence, lonely.evidence, *newer}
    assert not (root / CHECK / EPOCH / "gpu-1" / "second").exists()
    for reader in (store, await opened(root)):
        assert await reader.prune(CHECK, keep=frozenset({first.evidence})) == 0
    assert await store.prune(CHECK) == 1, "once no verdict points at it any more it goes as well"
    assert second.evidence not in {record.evidence for record in store.launches(CHECK)}


async def test_the_memory_holds_the_newest_launches_of_each_gpu_and_the_folder_all(
    store: EvidenceStore, root: Path
) -> None:
    other = (GPU(uuid="GPU-b"),)
    lonely, _ = await store.put_launch(sender(pod="lonely"), a_report(full=False, gpus=other))
    records = [
        (await store.put_launch(sender(pod=f"pod-{number}"), a_report(full=False)))[0]
        for number in range(HOLD_LAUNCHES + 5)
    ]

    for reader in (store, await opened(root)):
        assert reader.launches(CHECK) == (lonely, *records[5:])
        assert await reader.read_report(records[0].evidence) == a_report(full=False)
    assert len(bundles(root)) == len(records) + 1
    again, duplicate = await store.put_launch(sender(pod="pod-0"), a_report(full=False))
    assert (again.received_at, duplicate) == (records[0].received_at, True)
    with pytest.raises(ReportRefused):
        await store.put_launch(sender(pod="pod-0"), a_report(seed=5, full=False))


async def test_the_order_of_arrival_survives_a_clock_that_goes_back_and_a_restart(root: Path) -> None:
    moments = iter([T0, T0 + timedelta(hours=1), T0 - timedelta(hours=1), T0 - timedelta(hours=1), T0])
    store = EvidenceStore(root, now=lambda: next(moments))
    await store.open()
    for number in range(5):
        await store.put_launch(sender(pod=f"pod-{number}"), a_report(full=False))

    again = await opened(root)

    assert [record.pod_uid for record in again.launches(CHECK)] == [f"pod-{number}" for number in range(5)]
    assert again.launches(CHECK) == store.launches(CHECK)
    later, _ = await again.put_launch(sender(pod="pod-5"), a_report(full=False))
    assert later.received_at > T0 + timedelta(hours=1), "the clock of the second process is an hour behind as well"


async def test_what_is_never_compared_of_a_gpu_is_in_the_bundle_alone(store: EvidenceStore) -> None:
    facts = {"0.temperature.gpu": "31", "0.clocks.current.sm": "1980", "0.driver_version": "580"}

    record, _ = await store.put_launch(sender(), a_report(fingerprint={"gpu": facts}))

    assert record.fingerprint == {"gpu": {"0.driver_version": "580"}}
    assert (await store.read_report(record.evidence)).fingerprint == {"gpu": facts}


async def test_a_digest_whose_bundle_was_pruned_is_not_known_any_more(store: EvidenceStore) -> None:
    report = a_report()
    await store.put_launch(sender(pod="old"), report)
    for number in range(KEEP_LAUNCHES):
        await store.put_launch(sender(pod=f"pod-{number}"), a_report(seed=1, full=False))

    await store.prune(CHECK)

    assert not store.known(CHECK, epoch=EPOCH, version="stable", kind=LaunchKind.PINNED, digest=report.digest or "")


async def test_the_newest_visits_of_each_node_stay(store: EvidenceStore, root: Path) -> None:
    await store.put_visit(visit(attempt=1, node="gpu-2"))
    for attempt in range(2, KEEP_VISITS + 4):
        await store.put_visit(visit(attempt=attempt))

    assert await store.prune(CHECK) == 2

    for reader in (store, await opened(root)):
        assert [record.attempt for record in reader.visits(CHECK)] == [1, *range(4, KEEP_VISITS + 4)]


async def test_a_deleted_check_leaves_nothing(store: EvidenceStore, root: Path) -> None:
    await store.put_launch(sender(), a_report())
    await store.put_visit(visit())

    await store.delete_check(CHECK)
    await store.delete_check(CHECK)

    assert (store.launches(CHECK), store.visits(CHECK)) == ((), ())
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("part", ["..", "a/b", "", ".hidden", "a" * 300])
async def test_nothing_is_written_outside_of_the_store(part: str, store: EvidenceStore, tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="cannot be a part"):
        await store.put_launch(sender(node=part), a_report())
    with pytest.raises(EvidenceError):
        await store.read_report(f"{CHECK}/{part}")

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@contextmanager
def no_room() -> Iterator[None]:
    """Every file of more than 100 bytes fails, as on a full disk (EFBIG instead of ENOSPC)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


async def test_without_room_nothing_is_acknowledged_and_nothing_stays_behind(store: EvidenceStore, root: Path) -> None:
    with no_room():
        with pytest.raises(EvidenceError, match="evidence store"):
            await store.put_launch(sender(), a_report())
        with pytest.raises(EvidenceError):
            await store.put_visit(visit(message="m" * 1000 + os.urandom(500).hex()))

    assert (store.launches(CHECK), store.visits(CHECK)) == ((), ())
    assert [path for path in root.rglob("*") if path.is_file()] == []


async def test_once_there_is_room_again_the_same_report_is_taken(store: EvidenceStore) -> None:
    with no_room(), pytest.raises(EvidenceError):
        await store.put_launch(sender(), a_report())

    assert (await store.put_launch(sender(), a_report()))[1] is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
async def test_a_full_disk_is_an_evidence_error(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=True, timeout=10)
    try:
        store = await opened(small)
        acknowledged = 0
        with pytest.raises(EvidenceError, match="No space left"):  # noqa: PT012  which one fails is the disk's choice
            for number in range(1000):
                await store.put_launch(sender(pod=f"pod-{number}"), a_report(seed=number))
                acknowledged += 1
        assert acknowledged > 0
        assert len((await opened(small)).launches(CHECK)) == acknowledged
    finally:
        subprocess.run(["umount", small], check=True, timeout=10)


async def test_a_folder_that_cannot_be_made_is_an_evidence_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(EvidenceError):
        await EvidenceStore(tmp_path / "file" / "evidence").open()


WRITER = """
import asyncio, sys
from pathlib import Path
from steadyfleet_operator.intake.store import EvidenceStore
from tests.operator.builders import a_report
from tests.unit.test_store import sender

async def main() -> None:
    store = EvidenceStore(Path(sys.argv[1]))
    await store.open()
    for number in range(100_000):
        await store.put_launch(sender(pod=f"pod-{number}"), a_report(seed=number))
        print(number, flush=True)

asyncio.run(main())
"""


async def test_what_was_acknowledged_survives_kill_nine(root: Path) -> None:
    for life in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True
        )
        try:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            assert first, "the writer ended by itself"
            # Not a wait for luck: wherever in its work the kill meets it, the test must hold.
            time.sleep(0.05 * (life + 1))
        finally:
            writer.kill()
            rest = writer.communicate(timeout=10)[0]
        acknowledged = {int(line) for line in (first + rest).splitlines()}

        store = await opened(root)
        names = [str(path.relative_to(root)).removesuffix(".json.gz") for path in bundles(root)]

        assert acknowledged <= {int(name.split("/")[-2].removeprefix("pod-")) for name in names}
        assert not list(root.rglob("*.broken"))
        for name in names:
            await store.read_report(name)
