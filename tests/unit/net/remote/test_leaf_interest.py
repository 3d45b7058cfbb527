"""Tests of the interest of a leaf connection's other side in the hub of an account."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from lakestream.logging import Logger
from lakestream.net.hub import Hub
from lakestream.net.remote.leaf_connection import RemoteSubscribers
from lakestream.net.turn import Turn
from lakestream.ports import ListedMessages, Single
from lakestream.protocol.leaf_wire import InterestBegins, InterestEnds, Names

pytestmark = pytest.mark.unit

ACK = b"$JS.ACK.O.C.1.1.1.1.0"


class Frames:
    """Keeps the frames that are sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.congested = False
        self.drained: list[Callable[[], None]] = []

    def on_drain(self, callback: Callable[[], None]) -> None:
        self.drained.append(callback)

    def send(self, frames: Sequence[bytes], messages: int, size: int) -> None:
        self.sent.extend(frames)


class World:
    """Hub, and the interest behind one connection."""

    def __init__(self, max_payload: int = 100) -> None:
        self.hub = Hub(Turn(lambda call: call()), Logger())
        self.way = Frames()
        self.refused: list[tuple[bytes, int]] = []
        names = Names("lake", "h")
        self.subscribers = RemoteSubscribers(
            self.hub, names, self.way, max_payload, lambda subject, size: self.refused.append((subject, size))
        )

    def hears(self, *subjects: bytes) -> None:
        for subject in subjects:
            assert self.subscribers.begins(InterestBegins(subject))


def test_a_batch_goes_once_and_to_the_subject_it_was_delivered_to() -> None:
    world = World()
    world.hears(b"_INBOX.a.*", b"_INBOX.a.>", b"_INBOX.a.7")
    batch = [Single(b"orders.1", ACK, b"", b"x")]
    wanted = [b"LMSG _INBOX.a.7 $JS.ACK.lake.h.O.C.1.1.1.1.0@orders.1 1\r\nx\r\n"]
    assert world.hub.send(ListedMessages(batch, to=b"_INBOX.a.7"))
    assert world.way.sent == wanted
    # Also deliveries of another node of the cluster, and single messages.
    assert world.hub.delivered(ListedMessages(batch, to=b"_INBOX.a.7"), b"")
    assert world.way.sent == wanted * 2
    world.hub.send(Single(b"_INBOX.a.8", payload=b"answer"))
    assert world.way.sent[2:] == [b"LMSG _INBOX.a.8 6\r\nanswer\r\n"]


def test_only_answers_and_deliveries_are_listened_for() -> None:
    world = World()
    world.hears(b"orders.>", b">", b"$JS.API.>", b"$KV.>", b"$SYS.REQ.USER.INFO", b"$JS.M.a", b"$JS.S.a", b"$JSC.R.a")
    world.hears(b"_INBOX.>", b"_INBOX.*.1", b"$JS.M.*", b"_R_.>")  # none is one client's own
    assert len(world.subscribers) == 3
    assert not world.hub.send(Single(b"orders.1", payload=b"x"))
    assert world.hub.bound(b"$JS.M.a")
    world.subscribers.ends(InterestEnds(b"$JS.M.a"))
    world.subscribers.ends(InterestEnds(b"orders.>"))
    assert not world.hub.bound(b"$JS.M.a")
    world.subscribers.clear()
    assert len(world.subscribers) == len(world.hub.interest_graph) == 0


def test_a_change_of_a_groups_size_is_no_gap_in_interest() -> None:
    world = World()
    seen: list[bool] = []
    world.hub.watch_interest(b"$JS.M.a", b"g", seen.append)
    for count in (1, 5, 2):
        assert world.subscribers.begins(InterestBegins(b"$JS.M.a", b"g", count))
    assert seen == [True]
    world.hub.send(ListedMessages([Single(b"o", ACK, b"", b"x")], to=b"$JS.M.a"))
    assert world.way.sent == [b"LMSG $JS.M.a + $JS.ACK.lake.h.O.C.1.1.1.1.0@o g 1\r\nx\r\n"]
    world.subscribers.ends(InterestEnds(b"$JS.M.a", b"g"))
    assert seen == [True, False]


def test_a_slow_connection_holds_deliveries() -> None:
    world = World()
    world.hears(b"$JS.M.a")
    assert world.hub.writable(b"$JS.M.a")
    world.way.congested = True
    assert not world.hub.writable(b"$JS.M.a")
    called: list[bool] = []
    world.hub.when_writable(b"$JS.M.a", lambda: called.append(True))
    world.way.congested = False
    world.way.drained.pop()()
    assert called


def test_what_the_other_side_would_not_take_is_named() -> None:
    world = World(max_payload=10)
    world.hears(b"$JS.M.a")
    world.hub.send(
        ListedMessages([Single(b"o.1", ACK, b"", b"x" * 11), Single(b"o.2", ACK, b"", b"x" * 10)], to=b"$JS.M.a")
    )
    assert world.refused == [(b"o.1", 11)]
    assert len(world.way.sent) == 1
