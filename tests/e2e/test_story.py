"""The demo as a test: a real vLLM on three nodes, one of which reads a weight file with one flipped bit."""

from __future__ import annotations

import pytest
import yaml

from steadyfleet_operator.resource import LABEL_MARK
from tests.chart.monitoring import alert_queries, dashboard_queries
from tests.demo.story import BROKEN, CHECK, MANIFEST, Story
from tests.e2e import models, platform
from tests.e2e.foreign import foreign
from tests.e2e.lab import Lab

FIRING = f'ALERTS{{alertname="SteadyfleetNodeDivergent",alertstate="firing",check="{CHECK}"}}'

pytestmark = pytest.mark.engine


@pytest.mark.timeout(1200)
def test_a_flipped_bit_is_found_marked_alerted_repaired_and_cleared(lab: Lab) -> None:
    digest = models.place_tiny(lab.cluster)
    models.flip_exponent_bit(lab.cluster, BROKEN)
    manifest = yaml.safe_load(MANIFEST.read_text().replace("WEIGHTS_DIGEST", digest))
    story = Story(lab.cluster)
    story.prometheus = lab.prometheus

    with foreign(lab, BROKEN) as others, lab.check(manifest) as check:
        story.sweep()
        assert lab.marks() == {BROKEN}
        assert others.intact()
        _assert_found_for_the_right_reason(lab, check.uid, digest)
        lab.cluster.wait_for(
            lambda: {labels["node"] for labels, _ in platform.query(lab.prometheus, FIRING)} == {BROKEN},
            what="the alert fires for the broken node alone",
        )
        _assert_prometheus_takes_every_query(lab)

        story.repair()
        assert LABEL_MARK not in lab.node(BROKEN)["metadata"]["labels"]
        assert (lab.condition(BROKEN) or {}).get("status") == "False", "a check still watches the node"
        assert others.intact()
        lab.cluster.wait_for(lambda: not platform.query(lab.prometheus, FIRING), what="the alert is resolved")
    assert lab.traces() == []


def _assert_found_for_the_right_reason(lab: Lab, uid: str, digest: str) -> None:
    """By the weights file and by the bits, launched again, beside a control."""
    said = lab.cluster.get("nodeconsistency", BROKEN)["status"]["checks"]
    (entry,) = (found for found in said if found["uid"] == uid)
    assert (entry["cause"], entry["reason"]) == ("Weights", "WrongWeights")
    condition = lab.condition(BROKEN)
    assert condition is not None
    assert digest[:19] in condition["message"]
    launches = lab.evidence.launches(uid)
    broken = [launch for launch in launches if launch.node == BROKEN]
    good = [launch for launch in launches if launch.node != BROKEN]
    assert {launch.weights_digest for launch in good} == {digest}
    assert digest not in {launch.weights_digest for launch in broken}
    assert len({launch.digest for launch in good}) == 1
    assert {launch.digest for launch in good}.isdisjoint({launch.digest for launch in broken})
    assert "Confirm" in {launch.purpose.value for launch in broken}
    assert "Control" in {launch.purpose.value for launch in good}
    for node in ("gpu-1", "gpu-2", "gpu-3"):
        first = [launch for launch in launches if launch.node == node and launch.purpose.value == "Sweep"]
        assert len(first) >= 2, "at least two fresh launches a node"


def _assert_prometheus_takes_every_query(lab: Lab) -> None:
    """While a node is Divergent every panel of the dashboard has something to show."""
    empty = [
        query.where for query in dashboard_queries() if not platform.query(lab.prometheus, query.expression)
    ]
    assert empty == []
    firing = {query.where for query in alert_queries() if platform.query(lab.prometheus, query.expression)}
    assert "SteadyfleetNodeDivergent" in firing
    assert "SteadyfleetOperatorSilent" not in firing
