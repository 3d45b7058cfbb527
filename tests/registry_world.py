"""A server with `lakestream registry serve` in front, for tests of the registry's API.

Belongs here: both programs, and requests over HTTP.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

STARTED_S = 60


class RegistryWorld:
    """The registry's process in front of a server.

    Args:
        url: of the server.
        more: arguments of `serve`.
    """

    def __init__(self, url: str, *more: str) -> None:
        command = [sys.executable, "-m", "lakestream", "registry", "serve", "--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen([*command, "--server", url, *more], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert " at http://" in line, line
        self.url = line.split(" at ")[1].strip()

    def close(self) -> None:
        """End the process."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STARTED_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ask(self, method: str, path: str, body: Any = None, login: str = "") -> tuple[int, Any]:
        """Return (status, body) of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        if login:
            request.add_header("Authorization", login)
        try:
            with urllib.request.urlopen(request, timeout=STARTED_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def error(self, method: str, path: str, body: Any = None) -> int:
        """Return the code of an error."""
        status, found = self.ask(method, path, body)
        assert status >= 400, found
        assert str(found["error_code"]).startswith(str(status))
        assert found["message"]
        return int(found["error_code"])
