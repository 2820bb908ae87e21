"""The report server's authority and certificate: made here, renewed here, pure in `now`.

    |--- authority 1 signs ------------------------|
                              |-- 2 announced -----|--- authority 2 signs ---...
    Jobs trust  1             1+2                  1+2 ... 2

The next authority is in the bundle that new Jobs are given for `announce` before it signs anything: no probe that is
under way ever meets a certificate that it can't verify.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SKEW = timedelta(hours=1)
"""Certificates begin this much earlier: the clocks of nodes differ."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """`announce` must be longer than a visit can take. An authority is replaced `serving` before its end."""

    authority: timedelta = timedelta(days=365)
    serving: timedelta = timedelta(days=60)
    announce: timedelta = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """PEM of a certificate and its private key."""

    certificate: bytes
    key: bytes

    @property
    def not_after(self) -> datetime:
        return x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc

    def check(self) -> None:
        """Raises ValueError unless both can be read and belong together."""
        certificate = x509.load_pem_x509_certificate(self.certificate)
        key = serialization.load_pem_private_key(self.key, password=None)
        if certificate.public_key() != key.public_key():
            raise ValueError("a certificate and its key do not belong together")

    @property
    def hosts(self) -> tuple[str, ...]:
        """DNS names and IP addresses that the certificate stands for."""
        certificate = x509.load_pem_x509_certificate(self.certificate)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return tuple(str(name.value) for name in found.value)


@dataclass(frozen=True, slots=True)
class Pki:
    """All that is kept. `next_authority` is announced but signs nothing yet; `previous` signed until a while ago."""

    authority: KeyPair
    serving: KeyPair
    next_authority: KeyPair | None = None
    announced_at: datetime | None = None
    previous: bytes = b""
    """Certificate alone: its key is gone."""

    @property
    def bundle(self) -> str:
        """What a new Job trusts."""
        announced = self.next_authority.certificate if self.next_authority else b""
        return (self.authority.certificate + announced + self.previous).decode()


def advance(current: Pki | None, *, hosts: tuple[str, ...], now: datetime, lifetimes: Lifetimes) -> Pki:
    """What should stand now; `current` itself if nothing is due. Calling it again at the same time changes nothing."""
    if current is None or current.authority.not_after <= now:
        return _first(hosts, now, lifetimes)
    pki = _without_old_previous(current, now)
    if pki.next_authority is None and pki.authority.not_after - now <= lifetimes.announce + lifetimes.serving:
        pki = replace(pki, next_authority=_authority(now, lifetimes), announced_at=now)
    if pki.next_authority is not None and pki.announced_at is not None and now >= pki.announced_at + lifetimes.announce:
        pki = Pki(
            authority=pki.next_authority,
            serving=_serving(pki.next_authority, hosts, now, lifetimes),
            previous=pki.authority.certificate,
        )
    elif pki.serving.not_after - now <= lifetimes.serving / 3 or pki.serving.hosts != hosts:
        pki = replace(pki, serving=_serving(pki.authority, hosts, now, lifetimes))
    return pki


def load_into(context: ssl.SSLContext, serving: KeyPair) -> None:
    """New connections get the new certificate at once; those that are open go on."""
    # OpenSSL reads files only, and the operator's root file system is read-only: a file in memory (Linux).
    descriptor = os.memfd_create("steadyfleet-tls")
    try:
        os.write(descriptor, serving.key + serving.certificate)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def server_context(serving: KeyPair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_into(context, serving)
    return context


def _first(hosts: tuple[str, ...], now: datetime, lifetimes: Lifetimes) -> Pki:
    authority = _authority(now, lifetimes)
    return Pki(authority=authority, serving=_serving(authority, hosts, now, lifetimes))


def _without_old_previous(pki: Pki, now: datetime) -> Pki:
    if not pki.previous or x509.load_pem_x509_certificate(pki.previous).not_valid_after_utc > now:
        return pki
    return replace(pki, previous=b"")


def _authority(now: datetime, lifetimes: Lifetimes) -> KeyPair:
    key = ec.generate_private_key(ec.SECP256R1())
    # The serial in the name keeps two authorities apart in one bundle.
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Steadyfleet report authority {serial:x}"[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .serial_number(serial)
        .public_key(key.public_key())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + lifetimes.authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def _serving(authority: KeyPair, hosts: tuple[str, ...], now: datetime, lifetimes: Lifetimes) -> KeyPair:
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, password=None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not the one that was made here")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "steadyfleet-report")]))
        .issuer_name(issuer.subject)
        .serial_number(x509.random_serial_number())
        .public_key(key.public_key())
        .not_valid_before(now - SKEW)
        .not_valid_after(min(now + lifetimes.serving, issuer.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(certificate, key)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
