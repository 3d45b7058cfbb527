"""Tests of the keep-alive of connections to remotes."""

from __future__ import annotations

from lakestream.net.keep_alive import KeepAlive
from lakestream.net.remote.outgoing import OutgoingConnection
from tests.unit.stream_world import ManualClock

PAUSE_NS, MOST = 5, 2


class Line:
    """Connection: number of written bytes, of unconfirmed ones, of PINGs and of timeouts."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.written = self.left = self.pings = self.deaths = 0
        self.alive = KeepAlive(
            self.clock, lambda: (PAUSE_NS, MOST), self._ping, lambda: (self.written, self.left), self._died
        )
        self.alive.begin()

    def _ping(self) -> None:
        self.pings += 1
        self.written += 6
        self.left += 6

    def _died(self) -> None:
        self.deaths += 1

    def arrives(self, count: int) -> None:
        """Confirm `count` bytes."""
        self.left -= count

    def passes(self, pauses: int = 1) -> None:
        for _ in range(pauses):
            self.clock.advance(PAUSE_NS)


def test_a_line_on_which_nothing_is_answered_and_nothing_gets_through_is_dead_after_so_many_pings() -> None:
    line = Line()
    line.passes(MOST - 1)
    assert (line.pings, line.deaths) == (MOST, 0)
    line.passes()
    assert (line.pings, line.deaths) == (MOST, 1)
    line.passes(5)
    assert (line.pings, line.deaths) == (MOST, 1)


def test_a_side_that_confirms_what_comes_and_answers_nothing_is_dead_as_well() -> None:
    line = Line()
    for _ in range(MOST):
        line.arrives(line.left)
        line.passes()
    assert line.deaths == 1


def test_a_full_line_is_not_dead_while_anything_gets_through() -> None:
    line = Line()
    line.written, line.left = line.written + 1000, line.left + 1000
    for _ in range(20):
        line.arrives(40)
        line.passes()
    assert line.deaths == 0
    line.passes(MOST + 1)  # no progress any more
    assert line.deaths == 1


def test_more_that_is_written_is_nothing_that_gets_through() -> None:
    line = Line()
    line.passes(MOST - 1)
    line.written, line.left = line.written + 1000, line.left + 1000
    line.passes()
    assert line.deaths == 1


def test_an_answer_is_measured_and_whatever_comes_is_a_sign_of_life() -> None:
    line = Line()
    assert line.alive.rtt_ns == 0
    line.clock.advance(3)
    line.alive.answered()
    assert line.alive.rtt_ns == 3
    line.alive.answered()  # without a request
    assert line.alive.rtt_ns == 3
    line.arrives(line.left)
    for _ in range(10):
        line.passes()
        line.alive.received()
        line.arrives(line.left)
    assert line.deaths == 0


def test_where_this_side_does_not_read_silence_says_nothing() -> None:
    line = Line()
    line.arrives(line.left)
    line.alive.reads(False)
    line.passes(10)
    assert (line.pings, line.deaths) == (1, 0)
    line.alive.reads(True)
    line.passes(MOST + 1)
    assert line.deaths == 1


def test_no_ping_is_sent_after_the_end() -> None:
    line = Line()
    line.alive.end()
    line.passes(10)
    assert (line.pings, line.deaths) == (1, 0)


def test_a_waiting_callback_is_called_once() -> None:
    connection, calls = OutgoingConnection(ManualClock(), PAUSE_NS), []
    connection.on_drain(lambda: calls.append("at once"))
    connection.pause_writing()
    connection.on_drain(lambda: calls.append("later"))
    assert calls == ["at once"]
    connection.resume_writing()
    connection.resume_writing()
    assert calls == ["at once", "later"]
