"""Several launches in one pod: each reported in order, late reports caught up, refusals ending the visit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steadyfleet_contract.report import Outcome, TerminationMessage
from steadyfleet_contract.spec import ModelSource, SimulationSpec
from steadyfleet_probe import publish, visit
from steadyfleet_probe.errors import ReportRefused
from steadyfleet_probe.publish import ReportServer
from steadyfleet_probe.settings import Settings
from steadyfleet_probe.termination import TerminationLog
from tests.unit.probe.builders import FAKE_VLLM, GPU_UUID, launches, probe_settings, probe_spec
from tests.unit.probe.report_server import ReportServerForTests, refusal, serving


@pytest.fixture
def server() -> Iterator[ReportServerForTests]:
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(visit, "_BETWEEN_LAUNCHES_SECONDS", 0.05)
    monkeypatch.setattr(visit, "_AT_THE_END_SECONDS", 0.5)


def simulated(tmp_path: Path, server: ReportServerForTests, *kinds: str, **simulation: Any) -> Settings:
    spec = probe_spec(engine="Simulated", simulation=SimulationSpec(**simulation), launches=launches(*kinds))
    return probe_settings(tmp_path, spec, report_url=server.url, report_ca=server.ca)


def make_visit(settings: Settings) -> bool:
    log = TerminationLog(settings.termination_message_file)
    with ReportServer(settings.report_url, ca=settings.report_ca, token_file=settings.token_file) as server:
        return visit.run_visit(settings, server, log)


def termination(settings: Settings) -> TerminationMessage:
    return TerminationMessage.model_validate_json(settings.termination_message_file.read_bytes())


def test_every_launch_is_reported_in_order(tmp_path: Path, server: ReportServerForTests) -> None:
    settings = simulated(tmp_path, server, "Pinned", "Pinned", "AsServed")
    assert make_visit(settings)
    assert [(report.launch, report.kind.value) for report in server.reports] == [
        (0, "Pinned"),
        (1, "Pinned"),
        (2, "AsServed"),
    ]
    assert [query.launch for query in server.queries] == [0, 1, 2]
    assert all(launch.posted for launch in termination(settings).launches)


def test_gpu_that_is_gone_is_reported_by_every_launch_with_those_that_are_there(
    tmp_path: Path, server: ReportServerForTests
) -> None:
    spec = probe_spec(engine="Simulated", wanted_gpu="GPU-gone", launches=launches("Pinned", "Pinned"))
    assert make_visit(probe_settings(tmp_path, spec, report_url=server.url, report_ca=server.ca))
    assert [report.outcome for report in server.reports] == [Outcome.GPU_NOT_GIVEN] * 2
    assert [[gpu.uuid for gpu in report.gpus] for report in server.reports] == [[GPU_UUID]] * 2


def test_report_that_waited_is_delivered_after_the_next_launch(
    tmp_path: Path, server: ReportServerForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "_BETWEEN_LAUNCHES_SECONDS", 0.005)
    server.before_accepting = [refusal(503, "Restarting")] * 3
    settings = simulated(tmp_path, server, "Pinned", "Pinned")
    assert make_visit(settings)
    assert [report.launch for report in server.reports] == [0, 1]


def test_operator_that_stays_away_leaves_the_digests_in_the_termination_message(
    tmp_path: Path, server: ReportServerForTests
) -> None:
    server.before_accepting = [refusal(503, "Away")] * 1000
    settings = simulated(tmp_path, server, "Pinned")
    assert not make_visit(settings)
    [left] = termination(settings).launches
    assert not left.posted
    assert left.digest is not None


def test_refusal_ends_the_visit(tmp_path: Path, server: ReportServerForTests) -> None:
    server.before_accepting = [refusal(403, "NotOurPod")]
    settings = simulated(tmp_path, server, "Pinned", "Pinned", "Pinned")
    with pytest.raises(ReportRefused, match="NotOurPod"):
        make_visit(settings)
    assert len(server.queries) == 1
    assert "NotOurPod" in termination(settings).message


def test_launches_that_would_end_alike_are_reported_without_being_tried(
    tmp_path: Path, server: ReportServerForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FAKE_VLLM))
    spec = probe_spec(model=ModelSource(path="/models/none"), launches=launches("Pinned", "AsServed"))
    assert make_visit(probe_settings(tmp_path, spec, report_url=server.url, report_ca=server.ca))
    assert [report.outcome for report in server.reports] == [Outcome.MODEL_NOT_FOUND] * 2
    assert server.reports[1].message.startswith("not tried, since launch 0 ended so: model.path: /models/none")


def test_simulated_launches_agree_and_divergent_ones_agree_with_each_other(
    tmp_path: Path, server: ReportServerForTests
) -> None:
    make_visit(simulated(tmp_path, server, "Pinned", "Pinned"))
    make_visit(simulated(tmp_path, server, "Pinned", "Pinned", divergent_nodes=("node-a",)))
    right, right_again, wrong, wrong_again = (report.digest for report in server.reports)
    assert right == right_again
    assert wrong == wrong_again
    assert right != wrong
    assert len({report.weights_digest for report in server.reports}) == 1


def test_simulated_variants_show_in_as_served_launches_only(tmp_path: Path, server: ReportServerForTests) -> None:
    kinds = ["Pinned"] * 4 + ["AsServed"] * 12
    make_visit(simulated(tmp_path, server, *kinds, variants=3, variant_per_mille=700))
    assert len({report.digest for report in server.reports[:4]}) == 1
    assert len({report.digest for report in server.reports[4:]}) == 3


@pytest.mark.parametrize(
    ("simulation", "outcome"),
    [
        ({"crash_nodes": ("node-a",)}, Outcome.ENGINE_EXITED),
        ({"hang_nodes": ("node-a",)}, Outcome.ENGINE_NOT_READY),
        ({"crash_nodes": ("node-b",)}, Outcome.COMPLETED),
    ],
    ids=["crash", "hang", "other node"],
)
def test_simulated_faults_have_the_outcomes_of_real_ones(
    tmp_path: Path, server: ReportServerForTests, simulation: dict[str, Any], outcome: Outcome
) -> None:
    settings = simulated(tmp_path, server, "Pinned", **simulation)
    spec = settings.spec.model_copy(update={"launch_deadline_seconds": 1})
    make_visit(probe_settings(tmp_path, spec, report_url=server.url, report_ca=server.ca))
    assert server.reports[0].outcome is outcome


def test_simulated_wrong_weights_show_in_weights_and_bits(tmp_path: Path, server: ReportServerForTests) -> None:
    make_visit(simulated(tmp_path, server, "Pinned"))
    make_visit(simulated(tmp_path, server, "Pinned", wrong_weights_nodes=("node-a",)))
    right, wrong = server.reports
    assert right.weights_digest != wrong.weights_digest
    assert right.digest != wrong.digest
