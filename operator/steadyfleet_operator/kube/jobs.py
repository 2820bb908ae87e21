"""Probe Jobs and their Pods on the API server: created, listed, deleted.

The cap on *pods* holds because a slot owns one Job name, and a Job is deleted in the foreground: its name stays taken
until the pod is really gone, and a create in the meantime is a Conflict.
"""

from __future__ import annotations

from steadyfleet_operator.decide.observation import Job, Node, Pod
from steadyfleet_operator.errors import Refused
from steadyfleet_operator.kube import fields, names
from steadyfleet_operator.kube.client import KubeClient, Propagation
from steadyfleet_operator.kube.podparse import parse_job, parse_pod
from steadyfleet_operator.kube.podspec import pod_of
from steadyfleet_operator.kube.resources import JOBS, PODS, JsonObject

ENDED_PHASES = frozenset({"Succeeded", "Failed"})


class Jobs:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def refusal(self, job: JsonObject) -> str:
        """What the API server says to the Job's pod on a trial that creates nothing: empty, or the message of Pod
        Security, a quota, an admission webhook or the validation. A Job alone would show none of them."""
        namespace = job["metadata"]["namespace"]
        try:
            await self._client.create(PODS, pod_of(job), namespace=namespace, dry_run=True)
        except Refused as refused:
            return refused.message
        return ""

    async def create(self, job: JsonObject) -> Job:
        """Raises Conflict if the slot's name is still taken, Refused with the server's message."""
        return parse_job(await self._client.create(JOBS, job, namespace=job["metadata"]["namespace"]))

    async def list_jobs(self, namespace: str, check: str) -> tuple[Job, ...]:
        """Of the check of this name, those of a deleted predecessor included (they hold a slot's name)."""
        return (await self._client.list_all(JOBS, parse_job, namespace=namespace, labels=names.selector(check))).items

    async def list_pods(self, namespace: str, check: str) -> tuple[Pod, ...]:
        return (await self._client.list_all(PODS, parse_pod, namespace=namespace, labels=names.selector(check))).items

    async def delete(self, job: Job) -> bool:
        """In the foreground. False if it is gone already, or another one has the name."""
        return await self._client.delete(
            JOBS, job.name, uid=job.uid, namespace=job.namespace, propagation=Propagation.FOREGROUND
        )

    async def delete_all(self, namespaces: tuple[str, ...]) -> int:
        """Every Job of ours, for the uninstall; returns how many were there."""
        deleted = 0
        for namespace in namespaces:
            found = await self._client.list_all(JOBS, parse_job, namespace=namespace, labels=names.selector())
            for job in found.items:
                deleted += await self.delete(job)
        return deleted

    async def free_units(self, node: Node, resource_name: str) -> int:
        """What the node has to give of this resource and no pod on it asks for; never below 0.

        For the size of a request only: whether it is granted is the scheduler's business.
        """
        pods = await self._client.list_all(
            PODS, lambda item: _units(item, resource_name), fields=f"spec.nodeName={node.name}"
        )
        return max(0, node.allocatable.get(resource_name, 0) - sum(pods.items))


def _units(pod: JsonObject, resource_name: str) -> int:
    """What the scheduler counts for a pod: its containers together, or the most that its start needs at once."""
    if fields.text(fields.child(pod, "status"), "phase") in ENDED_PHASES:
        return 0
    spec = fields.child(pod, "spec")
    sidecars = most = 0
    for container in fields.children(spec, "initContainers"):
        asked = _asked(container, resource_name)
        if container.get("restartPolicy") == "Always":
            sidecars += asked
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + asked)
    together = sidecars + sum(_asked(container, resource_name) for container in fields.children(spec, "containers"))
    return max(together, most)


def _asked(container: JsonObject, resource_name: str) -> int:
    resources = fields.child(container, "resources")
    amount = fields.child(resources, "requests").get(resource_name)
    if amount is None:
        amount = fields.child(resources, "limits").get(resource_name)
    return fields.whole(amount) if amount is not None else 0
