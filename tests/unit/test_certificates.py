"""The report authority over the years, with the clock in the test's hand: no probe under way ever loses its trust."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from steadyfleet_operator.intake.certificates import KeyPair, Lifetimes, Pki, advance, server_context

T0 = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = ("steadyfleet-report.steadyfleet.svc",)
LIFETIMES = Lifetimes(authority=timedelta(days=100), serving=timedelta(days=20), announce=timedelta(days=5))
VISIT = timedelta(days=1)
"""How long a probe lives on the bundle that it was given."""


def step(current: Pki | None, now: datetime, *, hosts: tuple[str, ...] = HOSTS) -> Pki:
    return advance(current, hosts=hosts, now=now, lifetimes=LIFETIMES)


def verifies(bundle: str, serving: KeyPair, now: datetime) -> bool:
    """As a probe with this bundle would see the server."""
    authorities = x509.load_pem_x509_certificates(bundle.encode())
    store = x509.verification.Store(authorities)
    builder = x509.verification.PolicyBuilder().store(store).time(now)
    verifier = builder.build_server_verifier(x509.DNSName(HOSTS[0]))
    try:
        verifier.verify(x509.load_pem_x509_certificate(serving.certificate), [])
    except x509.verification.VerificationError:
        return False
    return True


def test_the_first_state_serves_and_is_trusted() -> None:
    pki = step(None, T0)

    assert verifies(pki.bundle, pki.serving, T0)
    assert pki.serving.hosts == HOSTS
    assert pki.next_authority is None


def test_nothing_due_changes_nothing() -> None:
    pki = step(None, T0)

    assert step(pki, T0) is pki
    assert step(pki, T0 + timedelta(days=13)) is pki


def test_the_serving_certificate_is_renewed_by_the_same_authority_before_its_end() -> None:
    pki = step(None, T0)

    renewed = step(pki, T0 + timedelta(days=14))

    assert renewed.serving != pki.serving
    assert renewed.authority == pki.authority


def test_another_host_name_gets_another_certificate_at_once() -> None:
    pki = step(step(None, T0), T0, hosts=("elsewhere.example",))

    assert pki.serving.hosts == ("elsewhere.example",)


def test_an_address_can_be_served_too() -> None:
    assert step(None, T0, hosts=("127.0.0.1", "::1")).serving.hosts == ("127.0.0.1", "::1")


def test_the_next_authority_is_announced_before_it_signs() -> None:
    pki = step(None, T0)

    announced = step(pki, T0 + timedelta(days=75))
    just_before = step(announced, T0 + timedelta(days=79))
    signing = step(just_before, T0 + timedelta(days=80))

    assert announced.next_authority is not None
    assert announced.next_authority.certificate.decode() in announced.bundle
    assert just_before.authority == pki.authority
    assert signing.authority == announced.next_authority
    assert pki.authority.certificate.decode() in signing.bundle


@pytest.mark.parametrize("every", [timedelta(hours=5), timedelta(days=1)], ids=str)
def test_every_probe_can_verify_the_server_for_its_whole_life(every: timedelta) -> None:
    """Three generations of authorities, looked at as often as the operator would."""
    pki = step(None, T0)
    given: list[tuple[datetime, str]] = []
    authorities = {pki.authority.certificate}
    now = T0
    while now < T0 + timedelta(days=260):
        pki = step(pki, now)
        authorities.add(pki.authority.certificate)
        given = [(born, bundle) for born, bundle in given if now - born <= VISIT]
        if not given or given[-1][1] != pki.bundle or now - given[-1][0] >= VISIT / 4:
            given.append((now, pki.bundle))
        assert all(verifies(bundle, pki.serving, now) for _, bundle in given), now
        now += every
    assert len(authorities) >= 3


def test_an_operator_that_was_away_for_too_long_starts_anew() -> None:
    pki = step(None, T0)
    later = T0 + timedelta(days=101)

    renewed = step(pki, later)

    assert renewed.authority != pki.authority
    assert verifies(renewed.bundle, renewed.serving, later)


def test_an_expired_authority_leaves_the_bundle() -> None:
    pki = step(None, T0)
    old = pki.authority.certificate.decode()
    for day in range(75, 102):
        pki = step(pki, T0 + timedelta(days=day))

    assert old not in pki.bundle


def test_an_authority_can_make_no_further_authority() -> None:
    certificate = x509.load_pem_x509_certificate(step(None, T0).authority.certificate)

    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_a_key_that_is_not_the_certificates_is_found() -> None:
    one, other = step(None, T0), step(None, T0)

    with pytest.raises(ValueError, match="belong together"):
        KeyPair(one.serving.certificate, other.serving.key).check()


def test_the_server_speaks_no_old_tls() -> None:
    assert server_context(step(None, datetime.now(UTC)).serving).minimum_version is ssl.TLSVersion.TLSv1_2
