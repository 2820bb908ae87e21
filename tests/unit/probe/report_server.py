"""A report server for tests: real TLS with a CA of its own, the contract's messages, answers as the test says."""

import gzip
import ipaddress
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from steadyfleet_contract.digest import check_report
from steadyfleet_contract.report import DigestAnswer, DigestQuery, ErrorAnswer, Report, ReportReceipt
from steadyfleet_contract.wire import DIGESTS_PATH, REPORTS_PATH


@dataclass
class Answer:
    status: int
    body: str
    headers: dict[str, str] = field(default_factory=dict)


def refusal(status: int, reason: str, **headers: str) -> Answer:
    body = ErrorAnswer(reason=reason, message=f"{reason}, said the test").model_dump_json(by_alias=True)
    return Answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


@dataclass
class ReportServerForTests:
    url: str
    ca: str
    reports: list[Report] = field(default_factory=list)
    queries: list[DigestQuery] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    before_accepting: list[Answer] = field(default_factory=list)
    """Given to the next reports, one each, instead of accepting them."""

    def answer(self, path: str, body: bytes) -> Answer:
        if path == DIGESTS_PATH:
            query = DigestQuery.model_validate_json(body)
            self.queries.append(query)
            return Answer(200, DigestAnswer(known=query.digest in self.known).model_dump_json(by_alias=True))
        if path == REPORTS_PATH:
            if self.before_accepting:
                return self.before_accepting.pop(0)
            report = Report.model_validate_json(body)
            check_report(report)
            self.reports.append(report)
            return Answer(200, ReportReceipt(accepted=True).model_dump_json(by_alias=True))
        return refusal(404, "NotFound")


@contextmanager
def serving() -> Iterator[ReportServerForTests]:
    ca, chain = _certificates()
    served: list[ReportServerForTests] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(lambda: served[0]))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "chain.pem"
        file.write_text(chain)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    served.append(ReportServerForTests(url=f"https://127.0.0.1:{server.server_port}", ca=ca))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served[0]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def _handler(served: Callable[[], ReportServerForTests]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body in one packet
        timeout = 10

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            served().tokens.append(self.headers.get("Authorization", ""))
            answer = served().answer(self.path, body)
            data = answer.body.encode()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    return Handler


def _certificates() -> tuple[str, str]:
    """PEM of a CA, and of a server's certificate and key for 127.0.0.1 signed by it."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "report CA for tests")])
    now = datetime.now(timezone.utc)

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=1))
        )

    ca = (
        builder(ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "report server for tests")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = builder(name, key.public_key()).add_extension(address, critical=False).sign(ca_key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = certificate.public_bytes(serialization.Encoding.PEM) + private
    return ca.public_bytes(serialization.Encoding.PEM).decode(), chain.decode()
