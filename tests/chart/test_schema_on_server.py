"""The CRDs on a real API server: what it takes, what it refuses and with which words, and what it makes of defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from steadyfleet_contract import wire
from steadyfleet_operator.kube import podspec
from steadyfleet_operator.resource import CheckSpec, CheckStatus, NodeStatus
from steadyfleet_probe import recipe
from tests.chart.checks import REMOVED, check
from tests.chart.helm import NAMESPACE, REPOSITORY, Json
from tests.cluster.control_plane import ControlPlane

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
SHA256 = "sha256:" + "0" * 64
VERSION = {"name": "stable", "image": "engine:1"}

ACCEPTED: dict[str, dict[str, Any]] = {
    "smallest": {},
    "model by path": {"engine.model": {"path": "/models/a", "digest": SHA256}},
    "model by repository": {"engine.model": {"repository": "Qwen/Qwen3-8B", "revision": "main"}},
    "simulation": {"engine.kind": "Simulated", "engine.simulation": {"divergentNodes": ["gpu-2"]}},
    "argument that only begins like a reserved one": {"engine.arguments": ["--model-impl=vllm", "--host-cache=1"]},
    "accepted variant": {"acceptedVariants": [SHA256]},
    "mount beside the probe's": {
        "engine.pod": {
            "volumes": [{"name": "models", "hostPath": {"path": "/srv"}}],
            "volumeMounts": [{"name": "models", "mountPath": "/steadyfleet-models"}],
        }
    },
    "pod labels": {"engine.pod": {"labels": {"team": "serving"}, "annotations": {"example.org/note": "a b"}}},
    "quantities": {"engine.pod": {"resources": {"requests": {"cpu": 4, "memory": "32Gi"}, "limits": {"cpu": "500m"}}}},
    "four versions": {"versions": [{"name": f"v{i}", "image": "engine:1"} for i in range(4)]},
    "selector": {
        "nodes.selector": {
            "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}, {"key": "c", "operator": "Exists"}]
        }
    },
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no engine": ({"engine": REMOVED}, "spec.engine: Required value"),
    "no model": ({"engine.model": {}}, "exactly one of engine.model.path, engine.model.repository and"),
    "two models": ({"engine.model": {"path": "/a", "synthetic": "Tiny"}}, "exactly one of engine.model.path"),
    "relative path": ({"engine.model": {"path": "models/a"}}, "engine.model.path must be absolute"),
    "repository without revision": ({"engine.model": {"repository": "a/b"}}, "engine.model.revision must be set with"),
    "revision without repository": (
        {"engine.model": {"path": "/a", "revision": "main"}},
        "engine.model.revision must be set with engine.model.repository, and only with it",
    ),
    "weights digest": ({"engine.model": {"path": "/a", "digest": "sha256:0"}}, "spec.engine.model.digest"),
    "simulation of a real engine": (
        {"engine.simulation": {"variants": 2}},
        "engine.simulation may only be set when engine.kind is Simulated",
    ),
    "no version": ({"versions": []}, "spec.versions in body should have at least 1 items"),
    "five versions": (
        {"versions": [{"name": f"v{i}", "image": "engine:1"} for i in range(5)]},
        "spec.versions: Too many: 5: must have at most 4 items",
    ),
    "version twice": ({"versions": [VERSION, VERSION]}, 'Duplicate value: {"name":"stable"}'),
    "image with a blank": ({"versions": [{**VERSION, "image": "a b"}]}, "spec.versions[0].image"),
    "short interval": ({"schedule.intervalSeconds": 59}, "should be greater than or equal to 60"),
    "no concurrency": ({"schedule.maxConcurrent": 0}, "should be greater than or equal to 1"),
    "too much concurrency": ({"schedule.maxConcurrent": 65}, "should be less than or equal to 64"),
    "launch deadline of a day": ({"schedule.launchDeadlineSeconds": 86400}, "should be less than or equal to 14400"),
    "no pinned launch": ({"launches.pinned": 0}, "should be greater than or equal to 1"),
    "too many as-served launches": ({"launches.asServed": 17}, "should be less than or equal to 16"),
    "too many launches together": ({"launches": {"pinned": 10, "asServed": 7}}, "together must be at most 16"),
    "variant that is no digest": ({"acceptedVariants": ["abc"]}, "spec.acceptedVariants[0]"),
    "In without values": (
        {"nodes.selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        "values must be given for the operators In and NotIn",
    ),
    "Exists with values": (
        {"nodes.selector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
        "must be empty for Exists and DoesNotExist",
    ),
    "argument with a newline": ({"engine.arguments": ["--a\n--b"]}, "spec.engine.arguments[0]"),
    "variable twice": (
        {"engine.environment": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        'Duplicate value: {"name":"A"}',
    ),
    "variable of the probe": ({"engine.environment": [{"name": wire.ENV_SPEC}]}, "STEADYFLEET_ are reserved"),
    "variable of the probe in a version": (
        {"versions": [{**VERSION, "environment": [{"name": wire.ENV_SPEC}]}]},
        "STEADYFLEET_ are reserved",
    ),
    "label of the operator": ({"engine.pod": {"labels": {"steadyfleet.dev/slot": "0"}}}, "set by the operator"),
    "annotation of the operator": ({"engine.pod": {"annotations": {"steadyfleet.dev/a": ""}}}, "set by the operator"),
    "mode unknown": ({"action.mode": "Taint"}, 'supported values: "Observe", "Mark"'),
    "misspelt field": ({"engine.argument": []}, 'unknown field "spec.engine.argument"'),
}

RESERVED_ARGUMENTS = (
    *recipe._RESERVED,
    "--model=x",
    "--api_key=secret",
    "--served_model_name",
    "--config=/x",
    "--grpc-port=1",
)
"""Those that the probe rejects, and other ways to write them or to reach the same."""


def apply(server: ControlPlane, document: Json) -> str:
    """A trial on the server; empty if it would take the object, else its words."""
    done = server.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(document), check=False)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("case", ACCEPTED)
def test_check_is_taken(server: ControlPlane, case: str) -> None:
    assert apply(server, check(ACCEPTED[case])) == ""


@pytest.mark.parametrize("case", REFUSED)
def test_check_is_refused_by_name_and_reason(server: ControlPlane, case: str) -> None:
    changes, words = REFUSED[case]
    assert words in apply(server, check(changes))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_example_is_taken(server: ControlPlane, file: Path) -> None:
    server.kubectl("create", "--dry-run=server", "--namespace", NAMESPACE, "-f", str(file))


@pytest.mark.parametrize(
    ("name", "words"),
    [("a" * 40, ""), ("a" * 41, "at most 40 characters"), ("a.b", "metadata.name must be a DNS label")],
    ids=["40 characters", "41 characters", "with a dot"],
)
def test_name_fits_into_job_names(server: ControlPlane, name: str, words: str) -> None:
    answer = apply(server, check(name=name))
    assert words in answer
    assert bool(answer) == bool(words)


@pytest.mark.parametrize("argument", RESERVED_ARGUMENTS)
def test_argument_that_the_probe_sets_is_refused(server: ControlPlane, argument: str) -> None:
    of_version = {"versions": [{**VERSION, "arguments": [argument]}]}
    for changes in ({"engine.arguments": [argument]}, of_version):
        assert "an engine argument may not set the model" in apply(server, check(changes))


@pytest.mark.parametrize(
    "volume", [podspec.VOLUME_PROBE, podspec.VOLUME_WORK, podspec.VOLUME_SHM, podspec.VOLUME_TOKEN, "steadyfleet"]
)
def test_volume_name_of_the_probe_is_refused(server: ControlPlane, volume: str) -> None:
    changes = {"engine.pod": {"volumes": [{"name": volume, "emptyDir": {}}]}}
    assert "steadyfleet-* are the probe's own" in apply(server, check(changes))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (wire.PROBE_DIR, "are the probe's own"),
        (wire.PROBE_DIR + "/run", "are the probe's own"),
        (wire.WORK_DIR + "/", "are the probe's own"),
        (wire.TOKEN_FILE, "are the probe's own"),
        (wire.TOKEN_FILE.removeprefix("/var"), "are the probe's own"),
        ("/srv/../steadyfleet", "mountPath must be absolute, without"),
        ("//steadyfleet", "mountPath must be absolute, without"),
        ("models", "mountPath must be absolute, without"),
    ],
)
def test_mount_over_the_probe_is_refused(server: ControlPlane, path: str, words: str) -> None:
    changes = {"engine.pod": {"volumeMounts": [{"name": "models", "mountPath": path}]}}
    assert words in apply(server, check(changes))


def test_defaults_of_server_and_model_are_the_same(server: ControlPlane) -> None:
    document = check(ACCEPTED["simulation"])
    done = server.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(document))
    stored = json.loads(done.stdout)["spec"]
    assert stored != document["spec"], "the server fills defaults in"
    assert CheckSpec.model_validate(stored) == CheckSpec.model_validate(document["spec"])


def test_verbatim_objects_reach_the_operator_whole(server: ControlPlane) -> None:
    pod = {
        "volumes": [{"name": "models", "nfs": {"server": "files", "path": "/models", "readOnly": True}}],
        "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True, "mountPropagation": "None"}],
        "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}],
        "securityContext": {"runAsUser": 2000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containerSecurityContext": {"capabilities": {"drop": ["ALL"]}},
        "imagePullSecrets": [{"name": "registry"}],
    }
    document = check({"engine.pod": pod})
    done = server.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(document))
    assert json.loads(done.stdout)["spec"]["engine"]["pod"] == pod


def condition(reason: str) -> Json:
    return {
        "type": "Ready", "status": "True", "reason": reason, "message": "3 of 3 nodes were visited",
        "lastTransitionTime": "2030-01-01T00:00:00Z", "observedGeneration": 1,
    }  # fmt: skip


STATUS: Json = {
    "observedGeneration": 1,
    "conditions": [condition("AsExpected")],
    "fleet": {"selected": 3, "consistent": 2, "divergent": 1, "notComparable": 0, "unknown": 0, "stale": 0},
    "sweep": {"startedAt": "2030-01-01T00:00:00Z", "visited": 3},
    "slots": [{"slot": 0, "attempt": 7}, {"slot": 1, "attempt": 9, "node": "gpu-1", "purpose": "Confirm"}],
    "divergent": [{"node": "gpu-2", "gpu": "GPU-1", "cause": "Weights", "since": "2030-01-01T00:00:00Z"}],
}


def test_status_as_the_operator_writes_it_is_kept_and_shown(server: ControlPlane) -> None:
    """The models write every field, empty ones included."""
    status = CheckStatus.model_validate(STATUS).model_dump(mode="json", by_alias=True)
    server.apply(json.dumps(check(name="shown")))
    patch = json.dumps({"status": status})
    where = ("--namespace", NAMESPACE, "consistencycheck/shown")
    server.kubectl("patch", *where, "--subresource=status", "--type=merge", "--patch", patch)
    assert server.get(*where)["status"] == status
    shown = server.kubectl("get", *where, "-o", "wide").stdout.splitlines()[1].split(maxsplit=10)
    assert shown[:7] == ["shown", "3", "2", "1", "0", "AsExpected", "Observe"]
    assert shown[8:] == ["0", "0", "3 of 3 nodes were visited"]


def test_node_status_as_the_operator_writes_it_is_kept_and_shown(server: ControlPlane) -> None:
    entry = {
        "namespace": NAMESPACE, "name": "nightly", "uid": "1", "verdict": "Divergent", "cause": "Weights",
        "reason": "WrongWeights", "marked": True,
        "gpus": [{"uuid": "GPU-1", "version": "stable", "verdict": "Divergent"}],
    }  # fmt: skip
    status = NodeStatus.model_validate({"checks": [entry]}).model_dump(mode="json", by_alias=True)
    server.apply(
        json.dumps({"apiVersion": "steadyfleet.dev/v1alpha1", "kind": "NodeConsistency", "metadata": {"name": "gpu-2"}})
    )
    patch = json.dumps({"status": status})
    server.kubectl("patch", "nodeconsistency/gpu-2", "--subresource=status", "--type=merge", "--patch", patch)
    assert server.get("nodeconsistency/gpu-2")["status"] == status
    shown = server.kubectl("get", "nodecon", "gpu-2").stdout.splitlines()[1].split()
    assert shown[:6] == ["gpu-2", "Divergent", "nightly", "WrongWeights", "Weights", "true"]


def test_baseline_is_of_one_group_for_ever(server: ControlPlane) -> None:
    spec = {
        "check": "nightly",
        "epoch": "0123456789abcdef",
        "version": "stable",
        "product": "",
        "promptSetDigest": SHA256,
    }
    baseline = {
        "apiVersion": "steadyfleet.dev/v1alpha1",
        "kind": "ConsistencyBaseline",
        "metadata": {"name": "nightly", "namespace": NAMESPACE},
        "spec": spec,
    }
    server.apply(json.dumps(baseline))
    changed = json.dumps({**baseline, "spec": {**spec, "epoch": "f" * 16}})
    answer = server.kubectl("apply", "-f", "-", input=changed, check=False).stderr
    assert "the spec of a ConsistencyBaseline is immutable" in answer
