"""S3-compatible server process for tests and benchmarks.

The server is moto, which implements conditional writes, multipart uploads and listings as Amazon documents them. It
keeps its objects in memory.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import urllib.request

from tests.store_server import StoreServer

_PROGRAM = """
import logging, sys, time
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
print(port, flush=True)
sys.stdin.read()
server.stop()
"""

AWS_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN")
"""Variables that could direct a client to another server or account; `environ` removes them."""


class S3Server(StoreServer):
    """S3 server with one bucket and generated credentials."""

    bucket = "lakes"
    others = AWS_VARIABLES

    def __init__(self) -> None:
        self.access_key = f"AKIA{secrets.token_hex(8).upper()}"
        self.secret_key = secrets.token_urlsafe(30)
        self.endpoint = ""
        self._process: subprocess.Popen[str] | None = None

    @property
    def secrets(self) -> tuple[str, str]:
        """Return the credentials, which must not appear in logs."""
        return self.access_key, self.secret_key

    def start(self) -> None:
        """Start the server on a free port and create the bucket."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{self.bucket}", method="PUT")).close()

    def stop(self) -> None:
        """Stop the server and discard its objects."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def variables(self) -> dict[str, str]:
        """Return the environment variables with which a client reaches the server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def url(self, name: str) -> str:
        """Return the URL of a lake root in the bucket."""
        return f"s3://{self.bucket}/{name}"

    def put(self, url: str) -> None:
        """Put an empty object, whose key may end in a slash."""
        path = url.removeprefix("s3://")
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{path}", data=b"", method="PUT")).close()
