"""Tests of the limit of messages of which only a part has come."""

from __future__ import annotations

import pytest

from lakestream.config.account_options import User
from tests.unit.net.test_guarded_runs import World
from tests.wire import pub

pytestmark = pytest.mark.unit

TOLD = b"-ERR 'maximum incomplete messages exceeded'\r\n"
LIMIT = 1 << 20


def world() -> World:
    """Return a server with three clients, whose parts may have 1 MiB together."""
    return World([User(name, "p") for name in "abc"], [[], [], ["c.>"]], [], max_incomplete_total=LIMIT)


def part(size: int) -> bytes:
    return pub("c.x", bytes(LIMIT))[:size]


def test_the_client_with_the_longest_part_is_closed_and_told() -> None:
    server = world()
    first, second, third = server.clients
    first.data_received(part(400 << 10))
    second.data_received(part(500 << 10))
    assert not first.close_reason
    third.data_received(part(300 << 10))
    assert second.close_reason == "Maximum Incomplete Messages Exceeded"
    assert server.sockets[1].written.endswith(TOLD)
    assert not first.close_reason
    assert not third.close_reason
    assert server.server.incomplete.total == pytest.approx(700 << 10, abs=100)


def test_a_message_that_came_whole_is_not_counted() -> None:
    server = world()
    whole = pub("c.x", bytes(LIMIT))
    for _ in range(3):
        server.send(whole[: LIMIT - 1000])
        assert server.server.incomplete.total
        server.send(whole[LIMIT - 1000 :])
        assert not server.server.incomplete.total
    assert not server.clients[0].close_reason


def test_a_closed_connection_is_not_counted() -> None:
    server = world()
    server.send(part(400 << 10))
    server.clients[0].close("Client Closed")
    assert not server.server.incomplete.total
