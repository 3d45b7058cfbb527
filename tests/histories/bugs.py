"""Bugs planted in running servers: the checkers of histories must find each of them.

Belongs here: bugs that clients can notice, with the faults that show them. A node starts with one if
LAKESTREAM_TEST_BUG names it (tests/cluster/faulty_node.py). Bugs in histories, without a server, are in plants.py.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

from lakestream.account.api import messages
from lakestream.account.get import query
from lakestream.ports import Single
from lakestream.stream.consumer.acks import AckHandler
from lakestream.stream.features.dedupe import Dedupe
from tests.sim.bugs import Bug
from tests.sim.whole.bugs import stores_repeated_messages

MEMORY_S = 0.5


def answers_gets_from_memory(stack: ExitStack) -> None:
    """A get at the leader returns what another one returned up to half a second earlier."""
    real = query.last_of
    memory: dict[tuple[int, bytes], tuple[float, int]] = {}

    def last_of(store: Any, pattern: bytes) -> int:
        at, seq = memory.get((id(store), pattern), (0.0, 0))
        if not seq or time.monotonic() > at + MEMORY_S:
            seq = real(store, pattern)
            memory[id(store), pattern] = time.monotonic(), seq
        return seq

    stack.enter_context(patch.object(query, "last_of", last_of))


def takes_messages_for_duplicates(stack: ExitStack) -> None:
    """A message whose id ends with 00 is acked as a duplicate of the one before it, and not stored."""
    real = Dedupe.seen

    def seen(self: Dedupe, msg_id: bytes) -> int:
        name, _, number = msg_id.rpartition(b"-")
        other = b"%s-%d" % (name, int(number) - 1) if number.endswith(b"00") and number.isdigit() else b""
        return real(self, msg_id) or (real(self, other) if other else 0)

    stack.enter_context(patch.object(Dedupe, "seen", seen))


def forgets_some_acks(stack: ExitStack) -> None:
    """An ack of every twentieth message is confirmed and not noted, up to four times."""
    real = AckHandler.ack

    def ack(self: AckHandler, seq: int, consumer_seq: int, deliveries: int, reply: bytes, plain: bool = True) -> bool:
        if reply and seq % 20 == 0 and deliveries <= 4:
            self._bus.send(Single(reply))
            return True
        return real(self, seq, consumer_seq, deliveries, reply, plain)

    stack.enter_context(patch.object(AckHandler, "ack", ack))


def purges_other_objects(stack: ExitStack) -> None:
    """A purge of an object's chunks removes those of all objects."""
    real = messages.Purge

    def purge(pattern: bytes, seq: int, keep: int) -> messages.Purge:
        chunks, _, _ = pattern.rpartition(b".")
        return real(chunks + b".>" if pattern.startswith(b"$O.") else pattern, seq, keep)

    stack.enter_context(patch.object(messages, "Purge", purge))


class ServerBug(NamedTuple):
    """One bug.

    Fields:
        plant: plants it in the process.
        faults: what has to happen for clients to notice it.
        promise: key of `CHECKS` that breaks.
        model: model of tests/judge that has no order for the history.
    """

    plant: Bug
    faults: tuple[str, ...]
    promise: str
    model: str


BUGS = {
    "answers_gets_from_memory": ServerBug(answers_gets_from_memory, (), "stale", "register"),
    "takes_messages_for_duplicates": ServerBug(takes_messages_for_duplicates, (), "lost", "message"),
    "forgets_some_acks": ServerBug(forgets_some_acks, (), "returned", "delivery"),
    "purges_other_objects": ServerBug(purges_other_objects, (), "invented", "register"),
    "stores_repeated_messages": ServerBug(stores_repeated_messages, ("kill-all",), "doubled", "message"),
}
