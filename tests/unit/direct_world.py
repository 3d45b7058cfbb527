"""What direct gets are answered, and the stream that tests ask.

Belongs here: the bytes that nats-server 2.15.1 answered to the same requests, for the tests of direct gets.
"""

from __future__ import annotations

from tests.unit.api_world import ApiWorld, stampless

NOT_FOUND = [(b"NATS/1.0 404 Message Not Found\r\n\r\n", b"")]
NO_RESULTS = [(b"NATS/1.0 404 No Results\r\n\r\n", b"")]
EMPTY = [(b"NATS/1.0 408 Empty Request\r\n\r\n", b"")]
MALFORMED = [(b"NATS/1.0 408 Malformed Request\r\n\r\n", b"")]
BAD = [(b"NATS/1.0 408 Bad Request\r\n\r\n", b"")]
LEVEL = [(b"NATS/1.0 412 Required Api Level\r\n\r\n", b"")]
TOO_MANY = [(b"NATS/1.0 413 Too Many Results\r\n\r\n", b"")]

Answer = tuple[int, int, int]
"""(sequence, Nats-Num-Pending, Nats-Last-Sequence) of one message of several."""


def stream_a() -> ApiWorld:
    """Stream A as `ApiWorld.fill` makes it, sequence 5 deleted."""
    world = ApiWorld()
    world.fill()
    world.ask("STREAM.MSG.DELETE.A", {"seq": 5})
    return world


def message(seq: int, pending: int | None = None, last: int | None = None) -> tuple[bytes, bytes]:
    """How message `seq` of stream A is answered."""
    block = b"NATS/1.0\r\n"
    if seq % 2:
        block += b"K: %d\r\n" % seq
    block += b"Nats-Stream: A\r\nNats-Subject: a.%d\r\nNats-Sequence: %d\r\nNats-Time-Stamp:\r\n" % (seq % 3, seq)
    if pending is not None:
        block += b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (pending, last or 0)
    return block + b"\r\n", b"m%d" % seq


def several(*messages: Answer, end: tuple[int, int] | None = None, up_to: int = 0) -> list[tuple[bytes, bytes]]:
    """How several messages are answered; `end` is (pending, last) of the closing status when not the last message's."""
    pending, last = end or (messages[-1][1], messages[-1][0])
    lines = b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (pending, last)
    if up_to:
        lines += b"Nats-UpTo-Sequence: %d\r\n" % up_to
    return [message(*each) for each in messages] + [(b"NATS/1.0 204 EOB\r\n%b\r\n" % lines, b"")]


def got(answers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Answers without the values of their time stamps."""
    return [(stampless(header), data) for header, data in answers]


def time_of(world: ApiWorld, seq: int) -> str:
    """The time of a message as the API shows it."""
    time: str = world.ask("STREAM.MSG.GET.A", {"seq": seq})["message"]["time"]
    return time
