"""How a probe pod reaches the report server: paths, audience, limits, and the names of what the Job hands over."""

from __future__ import annotations

AUDIENCE = "steadyfleet-report"
"""Audience of the projected service account token; a token for any other audience is refused."""

REPORTS_PATH = "/v1/reports"
"""POST one `Report` as JSON (optionally `Content-Encoding: gzip`); answered with a `ReportReceipt`."""

DIGESTS_PATH = "/v1/digests"
"""POST a `DigestQuery`; answered with a `DigestAnswer`."""

MAX_REPORT_BYTES = 8 * 1024 * 1024
"""Largest report body, compressed or not. A full report (16 prompts x 64 tokens x top-20) is about 0.3 MiB."""

MAX_TERMINATION_MESSAGE_BYTES = 2048
"""The kubelet keeps 4096 bytes over all containers of a pod; half of it leaves room for others."""

ENV_SPEC = "STEADYFLEET_PROBE_SPEC"
"""Environment variable that holds the `ProbeSpec` as JSON."""

ENV_REPORT_URL = "STEADYFLEET_REPORT_URL"
"""https URL of the report server, without a path."""

ENV_REPORT_CA = "STEADYFLEET_REPORT_CA"
"""PEM bundle of the authorities that the probe trusts for the report server."""

ENV_PYTHON = "STEADYFLEET_PYTHON"
"""Python that has the engine, if the check names one (`engine.python`); read by the launcher `run`."""

ENV_NODE_NAME = "STEADYFLEET_NODE_NAME"
"""Node name by the downward API; for the log only, the operator never believes it."""

ENV_POD_UID = "STEADYFLEET_POD_UID"
"""Pod uid by the downward API; for the log only."""

TOKEN_FILE = "/var/run/secrets/steadyfleet/token"  # noqa: S105  a path, not a secret
"""Where the projected token is mounted; the kubelet renews the file, so it is read anew for each request."""

PROBE_DIR = "/steadyfleet"
"""emptyDir that the init container fills: `probe.pyz` and the /bin/sh launcher `run`."""

WORK_DIR = "/steadyfleet-work"
"""emptyDir for HOME, caches, TMPDIR and generated models; nothing else in the pod needs to be writable."""

TERMINATION_MESSAGE_FILE = "/dev/termination-log"
