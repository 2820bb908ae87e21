"""From the API server's refusals, and the HTTP library's exceptions, to the errors of `errors.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import aiohttp
from kubernetes.aio import config as official_config

from steadyfleet_operator.errors import Conflict, KubernetesError, Refused, Unavailable
from steadyfleet_operator.kube.resources import JsonObject

MAX_MESSAGE_CHARACTERS = 2048
"""Of a server's error text; it ends up in conditions and logs."""


@contextmanager
def foreign_errors(path: str) -> Iterator[None]:
    """Wraps what the HTTP library and the client's configuration raise."""
    try:
        yield
    except TimeoutError as error:
        raise Unavailable(f"{path}: no answer from the API server in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(f"{path}: cannot reach the API server: {error}") from error
    except official_config.ConfigException as error:
        raise Unavailable(f"{path}: no valid credentials: {error}") from error
    except ValueError as error:
        raise Unavailable(f"{path}: the API server's answer is not JSON: {error}") from error


def is_status(body: bytes) -> bool:
    """Whether a 404 comes from the API server: one of a proxy must never look like a deleted object."""
    return _status(body).get("kind") == "Status"


def _status(body: bytes) -> JsonObject:
    with suppress(ValueError):
        parsed = json.loads(body)
        if isinstance(parsed, dict):
            return parsed
    return {}


def error_of(status: int, body: bytes, path: str) -> KubernetesError:
    """With the server's message from a `Status` object, or the bare text of whatever stands in front of it."""
    text = str(_status(body).get("message") or body.decode("utf-8", "replace")).strip()
    message = text[:MAX_MESSAGE_CHARACTERS] or f"{path}: HTTP {status}"
    match status:
        case 409:
            return Conflict(message, status=status)
        case 400 | 403 | 422:
            return Refused(message, status=status)
        case 404 | 408 | 429 | 500 | 502 | 503 | 504:
            return Unavailable(message, status=status)
        case _:
            return KubernetesError(message, status=status)
