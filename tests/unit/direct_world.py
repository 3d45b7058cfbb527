"""Stream for tests of direct gets, and the expected answers.

Belongs here: the bytes with which nats-server 2.15.1 answered the same requests.
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
    """Return a world with stream A of `ApiWorld.fill`, sequence 5 deleted."""
    world = ApiWorld()
    world.fill()
    world.ask("STREAM.MSG.DELETE.A", {"seq": 5})
    return world


def message(seq: int, pending: int | None = None, last: int | None = None) -> tuple[bytes, bytes]:
    """Return the answer for message `seq` of stream A."""
    block = b"NATS/1.0\r\n"
    if seq % 2:
        block += b"K: %d\r\n" % seq
    block += b"Nats-Stream: A\r\nNats-Subject: a.%d\r\nNats-Sequence: %d\r\nNats-Time-Stamp:\r\n" % (seq % 3, seq)
    if pending is not None:
        block += b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (pending, last or 0)
    return block + b"\r\n", b"m%d" % seq


def several(*messages: Answer, end: tuple[int, int] | None = None, up_to: int = 0) -> list[tuple[bytes, bytes]]:
    """Return the answers for several messages.

    `end` is (pending, last) of the final status if not the last message's.
    """
    pending, last = end or (messages[-1][1], messages[-1][0])
    lines = b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (pending, last)
    if up_to:
        lines += b"Nats-UpTo-Sequence: %d\r\n" % up_to
    return [message(*each) for each in messages] + [(b"NATS/1.0 204 EOB\r\n%b\r\n" % lines, b"")]


def got(answers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the answers without the values of their time stamps."""
    return [(stampless(header), data) for header, data in answers]


def time_of(world: ApiWorld, seq: int) -> str:
    """Return the time of a message in the API's format."""
    time: str = world.ask("STREAM.MSG.GET.A", {"seq": seq})["message"]["time"]
    return time
