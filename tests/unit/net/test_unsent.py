"""Tests of the write deadline and of the limit for all clients' unsent bytes, with a simulated clock."""

from __future__ import annotations

import msgspec
import pytest

from lakestream.config.options import Options
from lakestream.net import unsent
from lakestream.net.turn import TURN_BYTES, Turn
from lakestream.net.unsent import PENDING_BYTES, TRIM_BYTES, WRITE_DEADLINE, Unsent
from tests.unit.stream_world import ManualClock

pytestmark = pytest.mark.unit

SECOND = 1_000_000_000
MIB = 1 << 20


class Receiver(unsent.Receiver):
    pending_bytes = 0
    ended = detail = ""

    def cut(self, reason: str, detail: str) -> None:
        self.ended, self.detail, self.pending_bytes = reason, detail, 0


class World:
    """Receivers with their unsent bytes, and the number of heap trims."""

    def __init__(self, **limits: int) -> None:
        self.limits = Options(**{"max_pending": 1024 * MIB, "max_pending_total": 1024 * MIB, **limits})
        self.clock = ManualClock()
        self.trims = 0
        self.unsent = Unsent(lambda: self.limits, self.clock, self._trim)

    def _trim(self) -> None:
        self.trims += 1

    def write(self, receiver: Receiver, size: int) -> None:
        """Write as `Connection._write` does."""
        receiver.pending_bytes += size
        self.unsent.wrote(receiver, size, receiver.pending_bytes)

    def seconds(self, count: int) -> None:
        for _ in range(10 * count):
            self.clock.advance(SECOND // 10)


def test_a_flush_that_takes_longer_than_the_deadline_ends_the_connection() -> None:
    world, stuck = World(), Receiver()
    world.write(stuck, 655_530)
    world.seconds(10)
    assert not stuck.ended
    world.seconds(1)
    assert stuck.ended == WRITE_DEADLINE
    assert stuck.detail == "WriteDeadline of 10s exceeded with 11 chunks of 655530 total bytes."
    assert world.unsent.total == 0


def test_the_deadline_is_that_of_a_flush_so_a_slow_reader_that_finishes_each_in_time_stays() -> None:
    world, slow = World(), Receiver()
    for _ in range(10):
        world.write(slow, MIB)
        world.seconds(8)
        slow.pending_bytes = 1  # of the earlier writes one byte is left
        world.write(slow, MIB)
        world.seconds(1)
        slow.pending_bytes = MIB
        world.seconds(2)
    assert not slow.ended


def test_a_reader_that_takes_some_of_a_flush_and_never_the_whole_is_cut() -> None:
    world, dripping = World(), Receiver()
    world.write(dripping, MIB)
    for _ in range(11):
        dripping.pending_bytes -= 10
        world.seconds(1)
    assert dripping.ended == WRITE_DEADLINE


@pytest.mark.parametrize("retries", [False, True], ids=["patient", "write_timeout: retry"])
def test_a_patient_reader_is_cut_only_when_it_takes_nothing(retries: bool) -> None:
    world, dripping = World(), Receiver()
    dripping.patient = not retries
    world.limits = msgspec.structs.replace(world.limits, write_retry=retries)
    world.write(dripping, MIB)
    for _ in range(30):
        dripping.pending_bytes -= 10
        world.seconds(1)
    assert not dripping.ended
    world.seconds(11)
    assert dripping.ended == WRITE_DEADLINE


def test_a_clock_set_a_day_ahead_disconnects_no_client() -> None:
    world, receiver = World(), Receiver()
    world.write(receiver, MIB)
    world.seconds(1)
    world.clock.advance(86_400 * SECOND)
    assert not receiver.ended


def test_a_shorter_deadline_of_a_reload_is_kept() -> None:
    world, receiver = World(), Receiver()
    world.write(receiver, MIB)
    world.limits = msgspec.structs.replace(world.limits, write_deadline_ns=2 * SECOND)
    world.seconds(4)
    assert receiver.ended == WRITE_DEADLINE
    assert receiver.detail.startswith("WriteDeadline of 2s exceeded")


def test_at_the_bound_of_all_the_connections_with_the_most_unsent_bytes_are_cut() -> None:
    world = World(max_pending=64 * MIB, max_pending_total=64 * MIB)
    small, large = [Receiver() for _ in range(20)], [Receiver() for _ in range(3)]
    for receiver in small:
        world.write(receiver, MIB)
    for receiver in large:
        world.write(receiver, 20 * MIB)
    assert [each.ended for each in large].count(PENDING_BYTES) == 2
    assert not any(each.ended for each in small)
    assert world.unsent.total == sum(each.pending_bytes for each in (*small, *large)) == 40 * MIB
    assert any("MaxPendingTotal of 67108864 Exceeded, 20971520 bytes of it here" in each.detail for each in large)


def test_what_was_sent_meanwhile_is_not_held_against_anybody() -> None:
    world = World(max_pending=8 * MIB, max_pending_total=8 * MIB)
    receivers = [Receiver() for _ in range(100)]
    for receiver in receivers:
        world.write(receiver, MIB)
        receiver.pending_bytes = 0  # the kernel accepted it, but no tick has seen that yet
    assert not any(each.ended for each in receivers)
    assert world.unsent.total <= 8 * MIB


def test_the_bound_of_all_is_never_below_that_of_one() -> None:
    world, receiver = World(max_pending=8 * MIB, max_pending_total=MIB), Receiver()
    world.write(receiver, 8 * MIB)
    assert not receiver.ended


def test_memory_goes_back_to_the_system_once_after_many_unsent_bytes_have_gone() -> None:
    world, receivers = World(), [Receiver() for _ in range(4)]
    for receiver in receivers:
        world.write(receiver, TRIM_BYTES)
    world.seconds(12)
    assert all(each.ended for each in receivers)
    assert world.trims == 1
    world.seconds(60)
    assert world.trims == 1


def test_memory_goes_back_also_when_the_receivers_leave_by_themselves() -> None:
    world, receiver = World(), Receiver()
    world.write(receiver, 2 * TRIM_BYTES)
    world.seconds(1)
    receiver.pending_bytes = 0
    world.unsent.left(receiver)
    world.seconds(2)
    assert world.trims == 1


def test_without_unsent_bytes_there_is_no_timer() -> None:
    world, receiver = World(), Receiver()
    world.write(receiver, MIB)
    receiver.pending_bytes = 0
    world.seconds(1)
    assert not receiver.watched
    assert not world.clock.timers


class Sink:
    """Takes the messages that a turn collected."""

    flushed = False

    def flush(self) -> None:
        self.flushed = True


def test_a_publisher_that_filled_a_turn_goes_on_in_the_next_behind_what_it_gathered() -> None:
    clock = ManualClock()
    turn, sinks = Turn(clock.call_soon), [Sink() for _ in range(100)]
    for sink in sinks:
        turn.dirty(sink)
    turn.read(TURN_BYTES // 100)
    assert turn.overrun is None
    turn.read(1)
    assert turn.overrun is turn
    order: list[bool] = []
    turn.overrun.on_drain(lambda: order.append(all(sink.flushed for sink in sinks)))
    assert not order
    clock.turn()
    assert order == [True]
    turn.overrun = None
    turn.read(TURN_BYTES + 1)
    assert turn.overrun is None, "nobody has output in the new turn"
