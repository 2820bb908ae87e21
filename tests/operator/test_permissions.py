"""The table of permissions is exactly what the code uses: a walk over all of the I/O, read back from the audit log.

That nothing is missing in it every other test of this folder shows, since they run with these rights alone.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import UTC, datetime

import pytest

from steadyfleet_operator.intake.certificates import Lifetimes
from steadyfleet_operator.kube.baselines import Baselines
from steadyfleet_operator.kube.checks import Checks, InvalidCheck
from steadyfleet_operator.kube.client import KubeClient
from steadyfleet_operator.kube.events import Events
from steadyfleet_operator.kube.fields import name_of
from steadyfleet_operator.kube.jobs import Jobs
from steadyfleet_operator.kube.lease import Lease
from steadyfleet_operator.kube.marks import Marks
from steadyfleet_operator.kube.permissions import PERMISSIONS
from steadyfleet_operator.kube.pki import Authority
from steadyfleet_operator.kube.podspec import build_job
from steadyfleet_operator.kube.probes import Probes
from steadyfleet_operator.kube.resources import CHECKS, JOBS, NODES, PODS
from steadyfleet_operator.kube.results import NodeResults
from steadyfleet_operator.kube.uninstall import delete_own_objects, stop_operator
from steadyfleet_operator.kube.watch import follow
from steadyfleet_operator.reasons import Reason
from tests.cluster.control_plane import ControlPlane
from tests.operator.builders import a_visit, settings
from tests.operator.conftest import OWN_NAMESPACE, USER, MakeCheck, MakeNode
from tests.operator.test_checks import BASELINE, SPEC, STATUS, entry
from tests.operator.test_jobs import the_pod

Used = tuple[str, str, str]
"""Group, resource with its subresource, verb."""


def listed() -> set[Used]:
    return {(one.group, one.resource, verb) for one in PERMISSIONS for verb in one.verbs}


def used(control_plane: ControlPlane) -> set[Used]:
    found: set[Used] = set()
    for line in (control_plane.folder / "log" / "audit.log").read_text().splitlines():
        event = json.loads(line)
        target = event.get("objectRef", {})
        if event["user"]["username"] == USER and "resource" in target:
            subresource = f"/{target['subresource']}" if target.get("subresource") else ""
            found.add((target.get("apiGroup", ""), target["resource"] + subresource, event["verb"]))
    return found


async def walk(client: KubeClient, make_check: MakeCheck, make_node: MakeNode) -> None:
    """Each method of the I/O once."""
    check, node, configuration = await make_check(), await make_node(), settings()
    lease = Lease(client, namespace=OWN_NAMESPACE, name="steadyfleet-operator", holder="walk", duration_seconds=3)
    await lease.acquire()
    await lease.release()
    await delete_own_objects(client, configuration)
    aged = datetime.now(UTC) - Lifetimes().serving
    await Authority(client, configuration, now=lambda: aged).load()
    await Authority(client, configuration).load()

    for resource, namespace in ((NODES, ""), (CHECKS, ""), (JOBS, check.namespace), (PODS, check.namespace)):
        steps = follow(client, resource, name_of, namespace=namespace, relist_seconds=1)
        async with aclosing(steps), asyncio.timeout(20):
            seen = 0
            async for _ in steps:
                seen += 1
                if seen == 3:
                    break

    checks = Checks(client)
    await checks.list_all()
    await checks.get(check.namespace, check.name)
    written = await checks.write_status(check, STATUS)
    assert written is not None
    await checks.write_conditions(
        InvalidCheck(written.namespace, written.name, written.uid, 1, written.resource_version, (), ValueError()),  # type: ignore[arg-type]
        STATUS.conditions,
    )

    jobs = Jobs(client)
    built = build_job(a_visit(check, node.name, node.uid), settings=configuration, report_ca="PEM")
    assert await jobs.refusal(built) == ""
    job = await jobs.create(built)
    await jobs.list_jobs(check.namespace, check.name)
    pod = await the_pod(jobs, job)
    await jobs.free_units(node, "nvidia.com/gpu")
    probes = Probes(client)
    await probes.review("abc")
    await probes.pod(pod.namespace, pod.name)
    await probes.probe_of(pod)
    await jobs.delete(job)

    baselines, results = Baselines(client), NodeResults(client)
    await baselines.write(check, "walk", SPEC, BASELINE)
    await baselines.list_of(check)
    await results.put_entry(node, entry())
    await results.list_all()
    await results.drop_entry(node, namespace="serving", check="qwen")

    marks = Marks(client)
    await marks.mark(node.name, node.uid, reason=Reason.GPU_DIVERGES, message="x")
    await marks.clear_all()
    events = Events(client)
    for _ in range(2):
        events.post_check(check, type="Normal", reason=Reason.VISIT_STARTED, message="x")
    await events.drain()

    await stop_operator(client, OWN_NAMESPACE)
    await delete_own_objects(client, configuration)


@pytest.mark.timeout(120)
async def test_every_right_is_used_and_every_use_has_its_right(
    client: KubeClient, make_check: MakeCheck, make_node: MakeNode, control_plane: ControlPlane
) -> None:
    await walk(client, make_check, make_node)

    rights, uses = listed(), used(control_plane)
    allowed = {use for use in uses if use in rights}
    assert rights - allowed == set(), "rights that nobody uses"


def test_nodes_are_never_created_and_nothing_is_granted_by_wildcard() -> None:
    assert ("", "nodes", "create") not in listed()
    assert not any("*" in part for one in PERMISSIONS for part in (one.group, one.resource, *one.verbs))
