"""Server and compactor under the system call filters of their systemd units."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.console import Browser
from tests.packages import confined
from tests.packages.environments import ROOT
from tests.servers import Kind, Server

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

UNITS = ROOT / "deploy" / "systemd"
STOP_S = 60
MESSAGES = 20
CONFIG = "lake { seal_age: 1s }, lame_duck_duration: 30s, lame_duck_grace_period: 1s"


def under(unit: str) -> list[str]:
    """Return the beginning of a command line that runs a program under the filter of a unit."""
    return [sys.executable, confined.__file__, str(UNITS / unit)]


class ConfinedServer(Server):
    """A server under the filter of its unit."""

    def command(self) -> list[str]:
        """Return the command line of the next start."""
        return [*under("lakestream.service"), *super().command()]


@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_the_filter_is_in_force(unit: str) -> None:
    program = "import os, sys\ntry: os.sched_setaffinity(0, {0})\nexcept OSError as error: sys.exit(error.errno)"
    assert subprocess.run([*under(unit), sys.executable, "-c", program], check=False).returncode == errno.EPERM


def test_server_and_compactor_work_under_the_filters_of_their_units(tmp_path: Path) -> None:
    server = ConfinedServer(Kind.OURS, tmp_path / "store", config=CONFIG, args=["-m", "-1"]).start()
    try:
        browser = Browser(server)
        assert browser.begin().status == 200
        browser.request("$JS.API.STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
        for number in range(MESSAGES):
            reply = browser.post("publish", {"subject": f"orders.{number}", "data": f'{{"id": {number}}}'})
            assert reply.status == 200, reply
        reply = browser.post("sql", {"query": "SELECT count(*) FROM delta.`streams/ORDERS`"})
        assert (reply.status, reply.json.get("rows")) == (200, [[MESSAGES]]), reply
        assert server.process is not None
        [query] = psutil.Process(server.process.pid).children()
        assert query.nice() > psutil.Process(server.process.pid).nice()
        lakestream = str(Path(sys.executable).parent / "lakestream")
        command = [*under("lakestream-compact.service"), lakestream, "compact", "--once"]
        done = subprocess.run(
            [*command, "--lake", str(server.store / "lake")],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "HOME": str(tmp_path)} | {"LAKESTREAM_CACHE": _cache()},
        )
        assert done.returncode == 0, done.stderr
        assert server.page("/varz")["lake"]["lag"].get("ORDERS", 0) == 0
        server.process.send_signal(signal.SIGUSR2)
        assert server.process.wait(STOP_S) == 0
        assert "[ERR]" not in server.log()
    finally:
        server.kill()


def _cache() -> str:
    """Return the directory of the JARs that the tests share."""
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return os.environ.get("LAKESTREAM_CACHE") or str(Path(caches, "lakestream"))
