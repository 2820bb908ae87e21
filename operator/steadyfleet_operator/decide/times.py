"""Times as the Kubernetes API writes them: RFC 3339, UTC, whole seconds, so that memory equals the server."""

from __future__ import annotations

from datetime import datetime, timezone


def text(moment: datetime | None) -> str:
    return moment.astimezone(timezone.utc).replace(microsecond=0).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else ""


def parse(written: str) -> datetime | None:
    """None for an empty string, and for what is no time (somebody edited it)."""
    try:
        return datetime.fromisoformat(written) if written else None
    except ValueError:
        return None
