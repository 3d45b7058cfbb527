"""Scenarios of advisories and metrics about consumers and their messages (docs/internals/api.md#advisories)."""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.wire import Frame, Wire

SECOND = 1_000_000_000
VARIES = {"id": "<id>", "ack_time": "<positive>"}


class Listener:
    """Subscriber to the server's events about the consumer `c` of stream `S`."""

    def __init__(self, t: Script) -> None:
        self.t = t
        self.wire: Wire = t.connect()
        self.sids = {self.wire.subscribe(f"$JS.EVENT.{kind}.CONSUMER.*.S.>") for kind in ("ADVISORY", "METRIC")}
        self.wire.ping()

    def heard(self, label: str, count: int) -> None:
        """Record the next events: subject, fields in their order, values."""
        frames: list[Frame] = [self.wire.next(lambda frame: frame.sid in self.sids) for _ in range(count)]
        events = [frame.json() for frame in frames]
        shown = [
            (frame.subject, list(event), event | {key: VARIES[key] for key in VARIES if event.get(key)})
            for frame, event in zip(frames, events, strict=True)
        ]
        self.t.note(label, shown)

    def nothing_more(self) -> None:
        """Record that there were no further events."""
        self.t.note("nothing more", [self.t.show(frame) for frame in self.wire.ping()])


def _pulled(t: Script, count: int = 1, **config: Any) -> list[Frame]:
    """Create a consumer; return messages that it has delivered."""
    t.stream("S", ["a.*"])
    t.fill(["a.1"] * count)
    t.consumer("S", "c", **config)
    return t.pull("S", "c", {"batch": count}, count)


@scenario
def a_life(t: Script) -> None:
    t.stream("S", ["a.*"])
    listener = Listener(t)
    body = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    t.setup("CONSUMER.CREATE.S.c", body)
    t.setup("CONSUMER.CREATE.S.c", body)
    t.setup("CONSUMER.CREATE.S.c", {**body, "config": {**body["config"], "description": "d"}})  # type: ignore[dict-item]
    t.setup("CONSUMER.RESET.S.c", {})
    t.setup("CONSUMER.DELETE.S.c")
    listener.heard("created and deleted", 2)
    listener.nothing_more()


@scenario
def an_inactive_one_goes(t: Script) -> None:
    t.stream("S", ["a.*"])
    listener = Listener(t)
    body = {"stream_name": "S", "config": {"name": "c", "inactive_threshold": SECOND // 5}}
    t.setup("CONSUMER.CREATE.S.c", body)
    listener.heard("created and deleted", 2)


# Each row: the payload sent to the ack subject of the first of two messages.
@table(
    [
        ("nak", b"-NAK", 1),
        ("nak_later", b'-NAK {"delay":60000000000}', 1),
        ("nak_with_a_duration", b"-NAK 1m", 1),
        ("term", b"+TERM", 1),
        ("term_why", b"+TERM because it is so", 1),
        ("term_blank", b"+TERM ", 1),
        ("ack", b"+ACK", 0),
        ("progress", b"+WPI", 0),
    ]
)
def of_an_answer(t: Script, body: bytes, events: int) -> None:
    frames = _pulled(t, 2)
    listener = Listener(t)
    t.ack(frames[0], body)
    listener.heard("what came of it", events)
    t.ack(frames[0], body)  # until nothing is pending, or it is pending again
    t.numbers("S", "c")
    if events == 0:
        listener.nothing_more()


@table([("once", 1), ("twice", 2), ("three_times", 3)])
def max_deliveries(t: Script, most: int) -> None:
    _pulled(t, 1, max_deliver=most, ack_wait=SECOND // 5)
    listener = Listener(t)
    for n in range(1, most):
        t.pull("S", "c", {"batch": 1, "expires": 5 * SECOND, "max_bytes": 1000 + n}, 1)
        t.wire.ping()
    t.wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":1,"expires":9000000000}', t.wire.new_reply())
    listener.heard("told once", 1)
    t.numbers_when("S", "c", lambda info: info["num_ack_pending"] == 0)
    listener.nothing_more()


@table([("all", "100"), ("all_percent", "100%"), ("none", "0"), ("more", "101%")])
def sampled_acks(t: Script, frequency: str) -> None:
    frames = _pulled(t, 3, sample_freq=frequency)
    listener = Listener(t)
    for frame in frames[:2]:
        t.ack(frame)
    t.ack(frames[2], b"+TERM")
    listener.heard("metrics", 1 if frequency == "0" else 3)
    listener.nothing_more()


@scenario
def policy_all_is_not_sampled(t: Script) -> None:
    frames = _pulled(t, 3, sample_freq="100", ack_policy="all")
    listener = Listener(t)
    t.ack(frames[1])
    t.numbers_when("S", "c", lambda info: info["num_ack_pending"] == 1)
    listener.nothing_more()


@scenario
def a_pause(t: Script) -> None:
    t.stream("S", ["a.*"])
    t.consumer("S", "c")
    listener = Listener(t)
    t.setup("CONSUMER.PAUSE.S.c", {"pause_until": "2090-01-01T00:00:00Z"})
    t.setup("CONSUMER.PAUSE.S.c", {"pause_until": "2091-01-01T00:00:00Z"})
    t.setup("CONSUMER.PAUSE.S.c", {})
    listener.heard("begun, put off, over", 3)
    t.setup("CONSUMER.PAUSE.S.c", {})
    t.setup("CONSUMER.PAUSE.S.c", {"pause_until": "2001-01-01T00:00:00Z"})
    listener.heard("until a time that is over", 1)
    listener.nothing_more()


@scenario
def created_paused(t: Script) -> None:
    t.stream("S", ["a.*"])
    listener = Listener(t)
    config = {"durable_name": "c", "ack_policy": "explicit", "pause_until": "2090-01-01T00:00:00Z"}
    t.setup("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    listener.heard("what is said of it", 2)
