"""Who is who in a cluster: its certificate authority, its tokens, and a kubeconfig for each user.

The API server has a certificate, and a client certificate for the kubelets (that is what makes `kubectl logs` and
`exec` work). Everybody else shows a random token from tokens.csv. All secret files have mode 0600.
"""

import datetime
import ipaddress
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID_DAYS = 30
_SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")


@dataclass(frozen=True)
class Pki:
    """Files of one cluster's authority in its run folder."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def service_account_key(self) -> Path:
        return self.folder / "service-account.key"

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.csv"

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"


@dataclass(frozen=True)
class User:
    """A user of the API: name, groups and the file name of its kubeconfig."""

    name: str
    kubeconfig: str
    groups: tuple[str, ...] = ()


def create(folder: Path, *, server_ips: tuple[str, ...]) -> Pki:
    """Make the authority, the API server's two certificates and the key that signs service account tokens."""
    folder.mkdir(mode=0o700)
    pki = Pki(folder)
    ca_key = _new_key()
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "steadyfleet-cluster-ca")])
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    _write_certificate(pki.ca, ca)
    _write_key(pki.ca_key, ca_key)
    _write_key(pki.service_account_key, _new_key())

    def issue(name: str, subject: x509.Name, *extensions: x509.ExtensionType) -> None:
        key = _new_key()
        builder = _builder(subject, ca.subject, key.public_key())
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        _write_certificate(pki.certificate(name), builder.sign(ca_key, hashes.SHA256()))
        _write_key(pki.key(name), key)

    addresses = [x509.IPAddress(ipaddress.ip_address(ip)) for ip in server_ips]
    issue(
        "apiserver",
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")]),
        x509.SubjectAlternativeName([*addresses, *(x509.DNSName(name) for name in _SERVICE_NAMES)]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    )
    issue(
        "kubelet-client",
        x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters"),
                x509.NameAttribute(NameOID.COMMON_NAME, "apiserver-kubelet-client"),
            ]
        ),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),
    )
    return pki


def add_users(pki: Pki, users: list[User], *, server: str, folder: Path) -> None:
    """Give each user a token and a kubeconfig in `folder`; the API server reads the tokens when it starts."""
    lines = []
    for user in users:
        token = secrets.token_hex(16)
        groups = ",".join(user.groups)
        lines.append(f'{token},{user.name},{user.name},"{groups}"\n')
        write_secret(folder / user.kubeconfig, _kubeconfig(server=server, ca=pki.ca, user=user.name, token=token))
    write_secret(pki.tokens, "".join(lines))


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read, from its first moment on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _kubeconfig(*, server: str, ca: Path, user: str, token: str) -> str:
    return f"""\
apiVersion: v1
kind: Config
clusters: [{{name: steadyfleet, cluster: {{server: "{server}", certificate-authority: "{ca}"}}}}]
users: [{{name: "{user}", user: {{token: "{token}"}}}}]
contexts: [{{name: steadyfleet, context: {{cluster: steadyfleet, user: "{user}"}}}}]
current-context: steadyfleet
"""


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
    )


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    write_secret(path, pem.decode())
