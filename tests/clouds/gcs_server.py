"""Server with the APIs of Google Cloud Storage (gcs_program.py), as a process for tests.

Hadoop's client cannot be sent to another address. Its JVM gets a proxy and a certificate by JAVA_TOOL_OPTIONS instead,
and believes that it speaks with storage.googleapis.com. The server verifies no token, and knows no permissions.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from tests.store_server import StoreServer

HOST = "storage.googleapis.com"
STORE_PASSWORD = "for-tests"


class GcsServer(StoreServer):
    """Server with one bucket, and a service account with a generated key."""

    bucket = "lakes"
    others = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN", "GOOGLE_BUCKET")

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._pem = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        self._directory = tempfile.TemporaryDirectory(prefix="lakestream-gcs-")
        self.endpoint = ""
        self._process: subprocess.Popen[str] | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(line for line in self._pem.splitlines() if len(line) == 64)

    def start(self) -> None:
        files = Path(self._directory.name)
        (files / "tls.pem").write_bytes(self._pem.encode() + self._certificate())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.clouds.gcs_program", self.bucket, str(files / "tls.pem")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        key = {
            "type": "service_account",
            "project_id": "tests",
            "private_key_id": "1",
            "private_key": self._pem,
            "client_email": "lakes@tests.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": f"{self.endpoint}/token",
            "gcs_base_url": self.endpoint,
        }
        (files / "account.json").write_text(json.dumps(key))

    def _certificate(self) -> bytes:
        """Return a certificate for Google's host; write it for Java too."""
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        trusted = [pkcs12.PKCS12Certificate(made, b"google")]
        store = pkcs12.serialize_java_truststore(trusted, BestAvailableEncryption(STORE_PASSWORD.encode()))
        Path(self._directory.name, "trusted.p12").write_bytes(store)
        return made.public_bytes(Encoding.PEM)

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
        self._directory.cleanup()

    def variables(self) -> dict[str, str]:
        files, port = self._directory.name, self.endpoint.rpartition(":")[2]
        options = {
            "https.proxyHost": "127.0.0.1",
            "https.proxyPort": port,
            "javax.net.ssl.trustStore": f"{files}/trusted.p12",
            "javax.net.ssl.trustStoreType": "PKCS12",
            "javax.net.ssl.trustStorePassword": STORE_PASSWORD,
        }
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": f"{files}/account.json",
            "GOOGLE_BASE_URL": self.endpoint,
            "GOOGLE_ALLOW_HTTP": "true",
            "JAVA_TOOL_OPTIONS": " ".join(f"-D{name}={value}" for name, value in options.items()),
        }

    def url(self, name: str) -> str:
        return f"gs://{self.bucket}/{name}"
