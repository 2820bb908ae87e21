"""The only part that kopf sees: an event on a check wakes that check's pass, and nothing else.

`on.event` leaves neither a finalizer nor an annotation on the object, so that checks and the CRD can always be deleted,
the operator being there or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import kopf

from steadyfleet_operator.errors import Stop
from steadyfleet_operator.resource import GROUP, VERSION

PLURAL = "consistencychecks"
IDENTITY = "steadyfleet-operator"


def registry(wake: Callable[[str, str], None], *, in_cluster: bool) -> kopf.OperatorRegistry:
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    def login(**kwargs: object) -> object:
        if in_cluster:
            return kopf.login_with_service_account(**kwargs)  # type: ignore[arg-type]
        return kopf.login_with_kubeconfig(**kwargs)  # type: ignore[arg-type]

    @kopf.on.startup(registry=handlers)
    def configure(settings: kopf.OperatorSettings, **_: object) -> None:
        settings.posting.enabled = False  # our Events come from the passes
        settings.scanning.disabled = True  # no right to list CRDs and namespaces is asked for
        settings.networking.connect_timeout = 10
        settings.networking.request_timeout = 60
        settings.watching.server_timeout = 600  # a belt: a silent watch is ended by the server as well

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def changed(namespace: str | None, name: str | None, **_: object) -> None:
        wake(namespace or "", name or "")

    return handlers


async def watch_checks(wake: Callable[[str, str], None], *, in_cluster: bool) -> None:
    """Until cancelled. Raises Stop when kopf ends by itself: it takes SIGTERM and SIGINT for its own."""
    stop = asyncio.Event()
    try:
        await kopf.operator(
            registry=registry(wake, in_cluster=in_cluster),
            clusterwide=True,
            standalone=True,
            stop_flag=stop,
            # Else kopf asks for the user's name, which an arbitrary UID in a container does not have. The type is a
            # NewType of str that kopf does not export.
            identity=IDENTITY,  # type: ignore[arg-type]
        )
    finally:
        stop.set()
    raise Stop
