"""What `helm uninstall` runs before anything is deleted: takes every mark, Job and object of ours out of the cluster.

Safe to run again, and with the operator gone or killed before: it reads what is there, not what was remembered.
"""

from __future__ import annotations

import asyncio
import logging

from steadyfleet_operator.errors import KubernetesError, Refused
from steadyfleet_operator.kube.client import KubeClient
from steadyfleet_operator.kube.jobs import Jobs
from steadyfleet_operator.kube.marks import Marks
from steadyfleet_operator.kube.results import NodeResults
from steadyfleet_operator.kube.uninstall import delete_own_objects, stop_operator
from steadyfleet_operator.settings import Settings

log = logging.getLogger(__name__)

TRIES = 5


async def cleanup(settings: Settings, *, in_cluster: bool) -> None:
    """Raises KubernetesError if something of ours could not be removed."""
    client = await KubeClient.connect(in_cluster=in_cluster)
    try:
        await stop_operator(client, settings.namespace)
        for attempt in range(1, TRIES + 1):
            try:
                await _once(client, settings)
                return
            except KubernetesError as error:
                if attempt == TRIES:
                    raise
                log.warning("cleanup, try %d: %s", attempt, error)
                await asyncio.sleep(attempt)
    finally:
        await client.close()


async def _once(client: KubeClient, settings: Settings) -> None:
    marks = await Marks(client).clear_all()
    jobs = 0
    for namespace in settings.check_namespaces:
        try:
            jobs += await Jobs(client).delete_all((namespace,))
        except Refused as refused:
            # The namespace was deleted, and our Role in it: so were the Jobs.
            log.warning("no rights on Jobs in namespace %s: %s", namespace, refused.message)
    results = NodeResults(client)
    objects = 0
    for result in await results.list_all():
        await results.delete(result)
        objects += 1
    await delete_own_objects(client, settings)
    log.info("removed %d Jobs, the marks of %d nodes and %d NodeConsistency objects", jobs, marks, objects)
