"""Tests of a full disk: errors to publishers, and streams and reads that continue."""

from __future__ import annotations

import errno
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Kind, Server
from tests.wire import Wire

pytestmark = [pytest.mark.chaos, pytest.mark.smoke]

LARGEST_FILE = 2 << 20
REASON = os.strerror(errno.EFBIG)


class Limited(Server):
    """Server whose files may not exceed `LARGEST_FILE`: a write beyond that fails as on a full disk."""

    def command(self) -> list[str]:
        return ["prlimit", f"--fsize={LARGEST_FILE}", *super().command()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Limited]:
    server = Limited(Kind.OURS, tmp_path / "store", args=["-m", "-1"]).start()
    yield server
    server.kill()


def health(server: Server) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.host}:{server.http_port}/healthz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_stream_without_room_says_why_to_everybody_and_where_only_in_the_log(server: Limited) -> None:
    with Wire(server.address) as client:
        for name in "AB":
            client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name]})
        answers = [client.request("A", bytes(500_000)).json() for _ in range(6)]
        acked = [answer["seq"] for answer in answers if "error" not in answer]
        assert acked == list(range(1, len(acked) + 1))
        refused = [answer["error"] for answer in answers if "error" in answer]
        assert refused
        for error in refused:
            assert REASON in error["description"]
        status, page = health(server)
        assert status == 503
        assert REASON in page
        deleted = client.api("STREAM.MSG.DELETE.A", {"seq": 1})
        assert REASON in deleted["error"]["description"]
        for text in (json.dumps(answers), page, json.dumps(deleted)):
            assert str(server.store) not in text
        # Stored messages stay readable, and other streams are not affected.
        assert client.api("STREAM.MSG.GET.A", {"seq": len(acked)})["message"]["seq"] == len(acked)
        assert client.request("B", b"x").json()["seq"] == 1
    server.kill()  # all of its output is read then
    logged = [line for line in server.log().splitlines() if "[ERR]" in line]
    assert len(logged) == 1, logged
    assert "stream A: takes no more messages: " in logged[0]
    assert str(server.store) in logged[0]
    assert "restart the server" in logged[0]
