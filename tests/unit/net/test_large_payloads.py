"""Tests of large payloads on their way to subscribers: they are handed over as they are, in order, and counted."""

from __future__ import annotations

from typing import Any

import pytest

from lakestream.config.account_options import User
from lakestream.net.client_outbox import APART_BYTES
from lakestream.ports import Single
from tests.unit.net.test_guarded_runs import World
from tests.wire import pub

pytestmark = pytest.mark.unit


def _world(**options: Any) -> tuple[World, list[list[bytes]]]:
    """Return a publisher and a subscriber, and the pieces that are handed to the subscriber's socket together."""
    world = World([User("a", "p"), User("b", "p")], [[], ["b.>"]], [], **options)
    handed: list[list[bytes]] = []
    socket = world.sockets[1]
    socket.writelines = lambda pieces: handed.append(list(pieces))  # type: ignore[method-assign, assignment]
    return world, handed


def test_a_large_payload_is_handed_over_without_a_copy() -> None:
    world, handed = _world()
    payload = bytes(APART_BYTES + 1)
    world.clients[0].hub.send(Single(b"b.1", payload=payload))
    world.server.clock.turn()
    assert handed == [[b"MSG b.1 1 %d\r\n" % len(payload), payload, b"\r\n"]]
    assert handed[0][1] is payload


def test_small_messages_around_it_stay_in_order_and_all_are_counted() -> None:
    world, handed = _world()
    receiver = world.clients[1]
    before, sent = receiver.written, receiver.out_bytes
    payload, header = bytes(2 * APART_BYTES), b"NATS/1.0\r\nA: b\r\n\r\n"
    hub = world.clients[0].hub
    hub.send(Single(b"b.1", payload=b"first"))
    hub.send(Single(b"b.2", b"reply", header, payload))
    hub.send(Single(b"b.3", payload=b"last"))
    world.server.clock.turn()
    data = b"".join(b"".join(pieces) for pieces in handed)
    total = len(header) + len(payload)
    assert data == b"MSG b.1 1 5\r\nfirst\r\nHMSG b.2 1 reply %d %d\r\n%b%b\r\nMSG b.3 1 4\r\nlast\r\n" % (
        len(header),
        total,
        header,
        payload,
    )
    assert receiver.written - before == len(data)
    assert receiver.out_bytes - sent == total + 9


def test_a_large_payload_beyond_max_pending_ends_a_client_that_does_not_read() -> None:
    world, _ = _world(max_pending=1 << 20)
    world.sockets[1].get_write_buffer_size = lambda: 2 << 20  # type: ignore[method-assign]
    world.sockets[1].abort = lambda: None  # type: ignore[method-assign]
    world.send(pub("b.1", bytes(APART_BYTES + 1)))
    world.server.clock.turn()
    assert world.clients[1].close_reason == "Slow Consumer (Pending Bytes)"
