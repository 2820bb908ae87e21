"""Steadyfleet on the real cluster: images from the Dockerfile, the chart by Helm, and a Prometheus that scrapes it."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import images
from tests.cluster.cluster import Cluster
from tests.cluster.dockerfile import build_dockerfile
from tests.cluster.progress import step

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "steadyfleet"
RULES = CHART / "files" / "rules.yaml"
NAMESPACE = "steadyfleet"
TAG = "test"
OPERATOR_IMAGE = f"localhost/steadyfleet-operator:{TAG}"
PROBE_IMAGE = f"localhost/steadyfleet-probe:{TAG}"


@dataclass(frozen=True)
class BuiltImages:
    """OCI archives."""

    operator: Path
    probe: Path

    @property
    def all(self) -> tuple[Path, ...]:
        return self.operator, self.probe


def build_images() -> BuiltImages:
    """Both targets of the Dockerfile; a second call with an unchanged tree only looks them up."""
    bases = {"BASE": images.BASE_IMAGE, "PROBE_BASE": images.BASE_IMAGE}
    return BuiltImages(
        operator=build_dockerfile("operator", OPERATOR_IMAGE, bases),
        probe=build_dockerfile("probe", PROBE_IMAGE, bases),
    )


def install(cluster: Cluster, *, evidence: Path | None = None, values: dict[str, Any] | None = None) -> None:
    """`helm install` and wait until the operator is ready. `evidence`: a host folder that outlives the pod."""
    chosen: dict[str, Any] = {
        "operator": {"image": _image(OPERATOR_IMAGE)},
        "probe": {"image": _image(PROBE_IMAGE)},
    }
    if evidence is not None:
        evidence.mkdir(parents=True, exist_ok=True)
        evidence.chmod(0o777)
        chosen["evidence"] = {"volume": {"hostPath": {"path": str(evidence), "type": "Directory"}}}
    with step("helm install steadyfleet"):
        cluster.helm(
            "install", "steadyfleet", str(CHART), "--namespace", NAMESPACE, "--create-namespace",
            *_values_files(cluster, chosen, values or {}), "--wait", "--timeout", "120s",
        )  # fmt: skip


def upgrade(cluster: Cluster, values: dict[str, Any]) -> None:
    """`helm upgrade` that changes these values alone, and wait until the operator is ready."""
    with step(f"helm upgrade steadyfleet: {json.dumps(values)}"):
        cluster.helm(
            "upgrade", "steadyfleet", str(CHART), "--namespace", NAMESPACE, "--reuse-values",
            *_values_files(cluster, values), "--wait", "--timeout", "120s",
        )  # fmt: skip


def uninstall(cluster: Cluster) -> None:
    with step("helm uninstall steadyfleet"):
        cluster.helm("uninstall", "steadyfleet", "--namespace", NAMESPACE, "--wait", "--timeout", "300s")


def start_prometheus(cluster: Cluster, *, rules: Path = RULES) -> str:
    """A Prometheus that finds the operator's pod by the API and evaluates the chart's alerts; returns its URL."""
    config = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": "steadyfleet",
                "kubernetes_sd_configs": [
                    {"role": "pod", "kubeconfig_file": str(cluster.kubeconfig), "namespaces": {"names": [NAMESPACE]}}
                ],
                "relabel_configs": [
                    {
                        "source_labels": ["__meta_kubernetes_pod_label_app_kubernetes_io_component"],
                        "action": "keep",
                        "regex": "operator",
                    },
                    {
                        "source_labels": ["__meta_kubernetes_pod_container_port_name"],
                        "action": "keep",
                        "regex": "metrics",
                    },
                ],
            }
        ],
    }
    return cluster.start_prometheus(json.dumps(config))


def query(prometheus: str, expression: str) -> list[tuple[dict[str, str], float]]:
    """An instant query: (labels, value) of each series."""
    url = f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(url, timeout=10) as answer:
        body = json.load(answer)
    return [(series["metric"], float(series["value"][1])) for series in body["data"]["result"]]


def _values_files(cluster: Cluster, *layers: dict[str, Any]) -> list[str]:
    """One `--values` option a layer: helm merges them deeply, the later ones win."""
    arguments = []
    for number, layer in enumerate(layers):
        file = cluster.folder / f"values-{number}.json"
        file.write_text(json.dumps(layer))
        arguments += ["--values", str(file)]
    return arguments


def _image(name: str) -> dict[str, str]:
    repository, _, tag = name.rpartition(":")
    return {"repository": repository, "tag": tag, "pullPolicy": "Never"}
