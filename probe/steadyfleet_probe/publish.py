"""The way to the report server: one TLS client, a token read anew for each request, patience with a deadline.

What can heal is tried again (no connection, 5xx, 408, 425, 429), with back-off and jitter, not before a Retry-After has
passed. Every other refusal is final: the server has understood and will not change its mind.
"""

from __future__ import annotations

import gzip
import logging
import random
import ssl
import time
from pathlib import Path
from types import TracebackType

import httpx
from pydantic import ValidationError

from steadyfleet_contract.report import DigestAnswer, DigestQuery, ErrorAnswer, Report, ReportReceipt
from steadyfleet_contract.wire import DIGESTS_PATH, MAX_REPORT_BYTES, REPORTS_PATH
from steadyfleet_probe.deadline import Deadline
from steadyfleet_probe.errors import ReportRefused, ReportUndelivered, SettingsInvalid

_REQUEST_TIMEOUT_SECONDS = 30
_QUERY_SECONDS = 5
"""The engine holds its GPU while the digest is asked about."""
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 20.0
_LONGEST_RETRY_AFTER_SECONDS = 120.0

_HEALING = {408, 425, 429}

_log = logging.getLogger(__name__)


class ReportServer:
    def __init__(self, url: str, *, ca: str, token_file: Path) -> None:
        """Raises SettingsInvalid if `ca` holds no certificate."""
        try:
            # Without data it would trust the authorities of the image instead.
            trust = ssl.create_default_context(cadata=ca or "none")
        except (ssl.SSLError, ValueError) as error:
            raise SettingsInvalid(f"the CA of the report server is not a PEM certificate: {error}") from error
        self._client = httpx.Client(
            base_url=url, verify=trust, trust_env=False, timeout=_REQUEST_TIMEOUT_SECONDS, follow_redirects=False
        )
        self._token_file = token_file

    def __enter__(self) -> ReportServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def knows(self, query: DigestQuery) -> bool:
        """False if the server can't be asked: a full pass costs seconds, a missing one would cost another visit."""
        try:
            answer = self._post(DIGESTS_PATH, query.model_dump_json(by_alias=True).encode(), _QUERY_SECONDS)
            return DigestAnswer.model_validate_json(answer.raise_for_status().content).known
        except (httpx.HTTPError, OSError, ValidationError) as error:
            _log.warning("the digest could not be asked about, so it counts as unknown: %s", error)
            return False

    def deliver(self, report: Report, deadline: Deadline) -> ReportReceipt:
        """Raises ReportRefused or ReportUndelivered."""
        body = gzip.compress(_within_limit(report), mtime=0)
        pause = _FIRST_PAUSE_SECONDS
        while True:
            not_before = 0.0
            try:
                timeout = max(1.0, deadline.sooner(_REQUEST_TIMEOUT_SECONDS).remaining_seconds)
                answer = self._post(REPORTS_PATH, body, timeout, encoding="gzip")
            except (httpx.TransportError, OSError) as error:
                why = f"{type(error).__name__}: {error}"
            else:
                if answer.is_success:
                    return _receipt(answer)
                if 400 <= answer.status_code < 500 and answer.status_code not in _HEALING:
                    raise ReportRefused(f"the report server refused launch {report.launch}: {_words(answer)}")
                why = _words(answer)
                not_before = _retry_after(answer)
            # Full jitter, so that a fleet of probes does not come back at once when the server does.
            wait = max(not_before, random.uniform(pause / 2, pause))  # noqa: S311  not for secrets
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            if wait >= deadline.remaining_seconds:
                raise ReportUndelivered(f"launch {report.launch} could not be reported: {why}")
            _log.warning("launch %d not reported yet, next try in %.1f s: %s", report.launch, wait, why)
            time.sleep(wait)

    def _post(self, path: str, body: bytes, timeout_seconds: float, *, encoding: str = "") -> httpx.Response:
        # The kubelet renews the token's file, a copy would expire.
        headers = {
            "Authorization": f"Bearer {self._token_file.read_text().strip()}",
            "Content-Type": "application/json",
        }
        if encoding:
            headers["Content-Encoding"] = encoding
        return self._client.post(path, content=body, headers=headers, timeout=timeout_seconds)


def _within_limit(report: Report) -> bytes:
    """The report as JSON, without arrays if it would be too large with them: the digests matter most."""
    body = report.model_dump_json(by_alias=True).encode()
    if len(body) <= MAX_REPORT_BYTES:
        return body
    passes = [
        part.model_copy(
            update={
                "prompts": tuple(
                    prompt.model_copy(update={"tokens": "", "logprobs": "", "top_ids": "", "top_logprobs": ""})
                    for prompt in part.prompts
                )
            }
        )
        for part in report.passes
    ]
    note = f"arrays left out: the report would have had {len(body)} bytes, the limit is {MAX_REPORT_BYTES}"
    message = f"{report.message}; {note}" if report.message else note
    smaller = report.model_copy(update={"passes": tuple(passes), "message": message[:2048]})
    return smaller.model_dump_json(by_alias=True).encode()


def _receipt(answer: httpx.Response) -> ReportReceipt:
    try:
        receipt = ReportReceipt.model_validate_json(answer.content)
    except ValidationError as error:
        raise ReportRefused(f"the report server answered {answer.status_code} without a receipt") from error
    if not receipt.accepted:
        raise ReportRefused("the report server did not accept the report")
    return receipt


def _words(answer: httpx.Response) -> str:
    try:
        error = ErrorAnswer.model_validate_json(answer.content)
    except ValidationError:
        return f"HTTP {answer.status_code} {answer.reason_phrase}"
    field = f" ({error.field})" if error.field else ""
    return f"HTTP {answer.status_code} {error.reason}{field}: {error.message}"


def _retry_after(answer: httpx.Response) -> float:
    """Seconds; the date form is not used by our server and counts as absent."""
    text = answer.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_RETRY_AFTER_SECONDS) if text.isdecimal() else 0.0
