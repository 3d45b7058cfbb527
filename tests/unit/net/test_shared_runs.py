"""Tests of runs to several streams in turn: each gets its messages together, and no order is lost that matters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.logging import Logger
from lakestream.net.hub import SHARED, Hub
from lakestream.net.interest.subscription import Subscription
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, Messages
from lakestream.protocol.publishes import NOTHING_APART, Publishes, run_of
from tests.unit.route_world import pub
from tests.unit.stream_world import CLIENT, Inbox

pytestmark = pytest.mark.unit

SUBJECTS = [b"a.1", b"a.2", b"b.1", b"c.1", b"d.1", b"both.1", b"request", b"nobody"]
BLOCK = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"


class Receiver:
    """Takes messages apart, like a stream, or in order with all others."""

    def __init__(self, name: str, came: list[tuple[str, bytes]], most: int = 1 << 30) -> None:
        self.name, self.came, self.most, self.calls = name, came, most, 0

    def take(self, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        self.calls += 1
        end = min(end, begin + self.most)
        for each in messages.messages(begin, end):
            self.came.append((self.name, b" ".join((each.subject, each.reply, each.header, each.payload))))
        return end


class World:
    """Three streams, the first with two subjects, a receiver that is none, and a client of `d`."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.hub = Hub(Turn(lambda callback: None), Logger())
        self.came: list[tuple[str, bytes]] = []
        self.streams = [Receiver(name, self.came, most) for name in ("one", "two", "three")]
        for at, subject in ((0, b"a.>"), (0, b"c.*"), (1, b"b.>"), (2, b"both.*")):
            self.hub.subscribe(subject, self.streams[at].take, runs=True, apart=True)
        self.other = Receiver("other", self.came)
        self.hub.subscribe(b"request", self.other.take, runs=True)
        self.hub.subscribe(b"both.*", self.other.take, runs=True)
        self.inbox = Inbox()
        self.hub.join(Subscription(self.inbox, b"d.*", b"", b"1"))

    def between(self, name: str) -> list[tuple[str, bytes]]:
        """Return what one stream got, and the requests of the receiver that is none, in order."""
        return [each for each in self.came if each[0] == name or each[1].startswith(b"request")]

    def of(self, name: str) -> list[bytes]:
        """Return what one receiver got."""
        return [message for receiver, message in self.came if receiver == name]


def run_from(said: list[tuple[bytes, bool]]) -> Publishes:
    commands = [
        pub(subject, b"r" if at % 3 else b"", b"%d" % at, BLOCK if headed else b"")
        for at, (subject, headed) in enumerate(said)
    ]
    return run_of(b"".join(commands), NOTHING_APART)


@given(
    st.lists(st.tuples(st.sampled_from(SUBJECTS), st.booleans()), min_size=1, max_size=40), st.sampled_from([1, 2, 99])
)
def test_every_receiver_gets_what_it_gets_from_single_messages(said: list[tuple[bytes, bool]], most: int) -> None:
    run, shared, single = run_from(said), World(most), World()
    unheard = [at for begin, end in shared.hub.route_run(None, CLIENT, run, 0, len(run)) for at in range(begin, end)]
    for at, message in enumerate(run.messages()):
        assert single.hub.route(None, CLIENT, message) is (at not in unheard)
    for stream in single.streams:
        assert shared.between(stream.name) == single.between(stream.name)
    assert shared.of("other") == single.of("other")
    assert shared.inbox.got == single.inbox.got
    assert shared.hub.stopped == len(run)


def test_each_stream_gets_its_messages_at_once() -> None:
    world = World()
    run = run_from([(subject, False) for subject in (b"a.1", b"b.1", b"c.1", b"a.2") * 50])
    assert list(world.hub.route_run(None, CLIENT, run, 0, len(run))) == []
    assert [each.calls for each in world.streams] == [1, 1, 0]


def test_a_stream_with_several_subjects_gets_the_run_as_it_is() -> None:
    world = World()
    runs: list[Messages] = []
    world.hub.subscribe(b"e.*", lambda *args: runs.append(args[0]) or args[2], runs=True, apart=True)  # type: ignore[func-returns-value]
    run = run_from([(b"e.%d" % at, False) for at in range(9)])
    list(world.hub.route_run(None, CLIENT, run, 0, len(run)))
    assert [each is run for each in runs] == [True]


def test_no_more_than_some_are_handed_over_between_two_looks_at_the_time() -> None:
    now = [0]

    def steady() -> int:
        now[0] += 1 << 60
        return now[0]

    world = World()
    world.hub.turn = Turn(lambda callback: None, steady=steady)
    world.hub.turn.is_over()
    run = run_from([(subject, False) for subject in (b"a.1", b"b.1") * SHARED])
    list(world.hub.route_run(None, CLIENT, run, 0, len(run), sliced=True))
    assert world.hub.stopped == len(world.came) == SHARED
