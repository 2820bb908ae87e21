"""Each switch of the chart, on and off: exactly the objects that it speaks of come and go."""

from __future__ import annotations

import json

import pytest

from tests.chart.helm import CHART, NAMESPACE, Helm, Json, environment, pod, value

MONITORING_APIS = ("monitoring.coreos.com/v1/PrometheusRule", "monitoring.coreos.com/v1/ServiceMonitor")

CRDS = {
    f"CustomResourceDefinition/{plural}.steadyfleet.dev"
    for plural in ("consistencychecks", "nodeconsistencies", "consistencybaselines")
}


def policy(name: str) -> set[str]:
    return {f"ValidatingAdmissionPolicy/steadyfleet-{name}", f"ValidatingAdmissionPolicyBinding/steadyfleet-{name}"}


SWITCHES: dict[str, set[str]] = {
    "crds.enabled": CRDS,
    "cleanup.enabled": {"Job/steadyfleet-cleanup"},
    "rbac.aggregate": {f"ClusterRole/steadyfleet-{role}" for role in ("view", "edit", "mark")},
    "admissionPolicies.nodeWrites.enabled": policy("node-writes"),
    "admissionPolicies.markPermission.enabled": policy("mark-permission"),
    "admissionPolicies.podPermission.enabled": policy("pod-permission"),
    "networkPolicy.enabled": {"NetworkPolicy/steadyfleet-operator"},
    "monitoring.prometheusRule.enabled": {"PrometheusRule/steadyfleet"},
    "monitoring.serviceMonitor.enabled": {"ServiceMonitor/steadyfleet"},
    "monitoring.dashboard.enabled": {"ConfigMap/steadyfleet-dashboard"},
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_switch_adds_its_objects_and_no_others(helm: Helm, switch: str) -> None:
    on = helm.template(value(switch, True), apis=MONITORING_APIS)
    off = helm.template(value(switch, False), apis=MONITORING_APIS)
    assert on.names - off.names == SWITCHES[switch]
    assert off.names - on.names == set()


def test_policies_cleanup_and_crds_are_on_and_what_needs_other_software_is_off_by_default(helm: Helm) -> None:
    names = helm.template(apis=MONITORING_APIS).names
    off = {"networkPolicy.enabled", "monitoring.prometheusRule.enabled", "monitoring.serviceMonitor.enabled"}
    assert {switch for switch, objects in SWITCHES.items() if not objects <= names} == off


@pytest.mark.parametrize(
    ("keep", "annotations"), [(True, {"helm.sh/resource-policy": "keep"}), (False, {})], ids=["kept", "not kept"]
)
def test_crds_outlive_the_release_if_kept(helm: Helm, keep: bool, annotations: Json) -> None:
    definitions = helm.template(value("crds.keep", keep)).all("CustomResourceDefinition")
    assert [definition["metadata"].get("annotations", {}) for definition in definitions] == [annotations] * 3


def test_a_priority_class_of_ones_own_replaces_ours(helm: Helm) -> None:
    rendered = helm.template(value("probe.priorityClass.create", False), value("probe.priorityClass.name", "lowest"))
    assert rendered.all("PriorityClass") == []
    assert environment(rendered.of("Deployment"))["STEADYFLEET_PRIORITY_CLASS"] == "lowest"


def test_another_value_is_another_priority_class(helm: Helm) -> None:
    """The value is immutable, so that a changed one under the same name would fail the upgrade."""
    rendered = helm.template(value("probe.priorityClass.value", -2000))
    (priority_class,) = rendered.all("PriorityClass")
    assert priority_class["metadata"]["name"] == "steadyfleet-probe-minus-2000"
    assert (priority_class["value"], priority_class["preemptionPolicy"]) == (-2000, "Never")
    assert environment(rendered.of("Deployment"))["STEADYFLEET_PRIORITY_CLASS"] == "steadyfleet-probe-minus-2000"


def test_dry_run_reaches_the_operator(helm: Helm) -> None:
    operators = [helm.template(value("dryRun", on)).of("Deployment") for on in (True, False)]
    assert [environment(operator)["STEADYFLEET_DRY_RUN"] for operator in operators] == ["true", "false"]


def test_evidence_lies_where_it_is_told(helm: Helm) -> None:
    claim = {"persistentVolumeClaim": {"claimName": "evidence"}}
    operators = [helm.template(value("evidence.volume", given)).of("Deployment") for given in ({}, claim)]
    volumes = [pod(operator)["volumes"][0] for operator in operators]
    assert volumes == [{"name": "evidence", "emptyDir": {}}, {"name": "evidence", **claim}]


def test_image_by_digest_wins_over_the_tag(helm: Helm) -> None:
    digest = "sha256:" + "0" * 64
    rendered = helm.template(
        value("operator.image.tag", "v9"), value("probe.image.tag", "v9"), value("probe.image.digest", digest)
    )
    container = pod(rendered.of("Deployment"))["containers"][0]
    assert container["image"] == "localhost/steadyfleet-operator:v9"
    assert environment(rendered.of("Deployment"))["STEADYFLEET_PROBE_IMAGE"] == f"localhost/steadyfleet-probe@{digest}"


def test_rules_and_dashboard_are_the_plain_files(helm: Helm) -> None:
    rendered = helm.template(value("monitoring.prometheusRule.enabled", True), apis=MONITORING_APIS)
    dashboard = rendered.of("ConfigMap")["data"]["steadyfleet.json"]
    assert json.loads(dashboard) == json.loads((CHART / "files/dashboard.json").read_text())
    assert rendered.of("ConfigMap")["metadata"]["labels"]["grafana_dashboard"] == "1"
    alerts = [rule["alert"] for group in rendered.of("PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    assert "SteadyfleetNodeDivergent" in alerts


def test_scraping_keeps_the_labels_of_the_check(helm: Helm) -> None:
    rendered = helm.template(value("monitoring.serviceMonitor.enabled", True), apis=MONITORING_APIS)
    (endpoint,) = rendered.of("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint == {"port": "metrics", "interval": "30s", "honorLabels": True}
    metrics = rendered.of("Service", "steadyfleet-metrics")
    selected = rendered.of("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert selected.items() <= metrics["metadata"]["labels"].items()


def test_network_policy_lets_probes_in_from_check_namespaces(helm: Helm) -> None:
    rendered = helm.template(value("networkPolicy.enabled", True), value("checkNamespaces", ["a", NAMESPACE]))
    report, metrics = rendered.of("NetworkPolicy")["spec"]["ingress"]
    assert report["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"] == ["a", NAMESPACE]
    assert report["from"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/managed-by": "steadyfleet"}}
    assert metrics == {"ports": [{"port": "metrics"}]}
