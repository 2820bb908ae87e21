"""Reports reach a real TLS server, or the words for why not; nothing is tried again that can't heal."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyfleet_contract import wire
from steadyfleet_contract.report import DigestQuery, Report
from steadyfleet_contract.spec import CacheState, LaunchKind
from steadyfleet_probe import publish
from steadyfleet_probe.deadline import Deadline
from steadyfleet_probe.draft import Draft
from steadyfleet_probe.errors import ReportRefused, ReportUndelivered, SettingsInvalid
from steadyfleet_probe.measure import measure
from steadyfleet_probe.prompts import STANDARD, prompt_set
from steadyfleet_probe.publish import ReportServer
from steadyfleet_probe.simulated import SimulatedEngine
from tests.unit.probe.builders import launches, probe_spec
from tests.unit.probe.report_server import Answer, ReportServerForTests, refusal, serving


@pytest.fixture
def server() -> Iterator[ReportServerForTests]:
    with serving() as running:
        yield running


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("first\n")
    return file


@pytest.fixture
def client(server: ReportServerForTests, token: Path) -> Iterator[ReportServer]:
    with ReportServer(server.url, ca=server.ca, token_file=token) as made:
        yield made


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_FIRST_PAUSE_SECONDS", 0.01)


def a_report() -> Report:
    draft = Draft.begin(probe_spec(), launches("Pinned")[0])
    draft.measured = measure(
        SimulatedEngine(seed=0, shift=""),
        prompt_set(STANDARD, vocabulary=512),
        max_tokens=4,
        top_logprobs=3,
        digest_is_known=lambda digest: False,
    )
    return draft.report()


def a_query() -> DigestQuery:
    return DigestQuery(launch=0, kind=LaunchKind.PINNED, cache=CacheState.COLD, digest=f"sha256:{'0' * 64}")


def soon() -> Deadline:
    return Deadline.after(5)


def test_report_arrives_unchanged_with_the_token(client: ReportServer, server: ReportServerForTests) -> None:
    report = a_report()
    assert client.deliver(report, soon()).accepted
    assert server.reports == [report]
    assert server.tokens == ["Bearer first"]


def test_token_is_read_anew_for_each_request(client: ReportServer, server: ReportServerForTests, token: Path) -> None:
    client.deliver(a_report(), soon())
    token.write_text("second")
    client.deliver(a_report(), soon())
    assert server.tokens == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    "answer",
    [refusal(503, "TokenReviewDown"), refusal(429, "TooManyRequests"), refusal(500, "Bug"), Answer(502, "<html>")],
    ids=["503", "429", "500", "502"],
)
def test_what_can_heal_is_tried_again(client: ReportServer, server: ReportServerForTests, answer: Answer) -> None:
    server.before_accepting = [answer, answer]
    assert client.deliver(a_report(), soon()).accepted
    assert len(server.tokens) == 3


def test_retry_after_is_waited_for(client: ReportServer, server: ReportServerForTests) -> None:
    server.before_accepting = [refusal(503, "Busy", Retry_After="30")]
    with pytest.raises(ReportUndelivered, match="HTTP 503 Busy: Busy, said the test"):
        client.deliver(a_report(), soon())
    assert len(server.tokens) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_final_refusal_is_told_at_once(client: ReportServer, server: ReportServerForTests, status: int) -> None:
    server.before_accepting = [refusal(status, "NotOurs")]
    with pytest.raises(ReportRefused, match=f"refused launch 0: HTTP {status} NotOurs: NotOurs, said the test"):
        client.deliver(a_report(), soon())
    assert len(server.tokens) == 1


def test_answer_without_a_receipt_is_a_refusal(client: ReportServer, server: ReportServerForTests) -> None:
    server.before_accepting = [Answer(200, "<html>some proxy</html>")]
    with pytest.raises(ReportRefused, match="answered 200 without a receipt"):
        client.deliver(a_report(), soon())


def test_server_that_is_away_is_tried_until_the_deadline(client: ReportServer, token: Path) -> None:
    with serving() as gone:
        url, ca = gone.url, gone.ca
    with ReportServer(url, ca=ca, token_file=token) as lonely, pytest.raises(ReportUndelivered, match="ConnectError"):
        lonely.deliver(a_report(), Deadline.after(0.3))


def test_server_of_another_authority_gets_neither_token_nor_report(
    server: ReportServerForTests, token: Path
) -> None:
    with (
        serving() as other,
        ReportServer(server.url, ca=other.ca, token_file=token) as deceived,
        pytest.raises(ReportUndelivered, match="certificate verify failed"),
    ):
        deceived.deliver(a_report(), Deadline.after(0.3))
    assert server.tokens == []


def test_missing_token_is_waited_for(client: ReportServer, server: ReportServerForTests, token: Path) -> None:
    token.unlink()
    with pytest.raises(ReportUndelivered, match="FileNotFoundError"):
        client.deliver(a_report(), Deadline.after(0.3))
    assert server.reports == []


def test_report_beyond_the_limit_is_sent_without_arrays(
    client: ReportServer, server: ReportServerForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "MAX_REPORT_BYTES", 20_000)
    report = a_report()
    client.deliver(report, soon())
    [sent] = server.reports
    assert sent.digest == report.digest
    assert not [prompt for part in sent.passes for prompt in part.prompts if prompt.tokens]
    assert "arrays left out: the report would have had" in sent.message
    assert "the limit is 20000" in sent.message


def test_full_report_of_the_default_size_is_within_the_limit() -> None:
    draft = Draft.begin(probe_spec(), launches("Pinned")[0])
    draft.measured = measure(
        SimulatedEngine(seed=0, shift=""),
        prompt_set(STANDARD, vocabulary=512),
        max_tokens=64,
        top_logprobs=20,
        digest_is_known=lambda digest: False,
    )
    assert len(draft.report().model_dump_json(by_alias=True)) < wire.MAX_REPORT_BYTES / 16


def test_digest_is_asked_about(client: ReportServer, server: ReportServerForTests) -> None:
    assert not client.knows(a_query())
    server.known.add(a_query().digest)
    assert client.knows(a_query())


def test_digest_counts_as_unknown_if_the_server_is_away(token: Path) -> None:
    with serving() as gone:
        url, ca = gone.url, gone.ca
    with ReportServer(url, ca=ca, token_file=token) as lonely:
        assert not lonely.knows(a_query())


@pytest.mark.parametrize("ca", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_ca_that_is_no_certificate_is_a_bad_setting(ca: str, token: Path) -> None:
    with pytest.raises(SettingsInvalid, match="is not a PEM certificate"):
        ReportServer("https://127.0.0.1:1", ca=ca, token_file=token)


def test_system_authorities_are_not_trusted(client: ReportServer) -> None:
    context = client._client._transport._pool._ssl_context  # type: ignore[attr-defined]
    assert isinstance(context, ssl.SSLContext)
    assert len(context.get_ca_certs()) == 1
