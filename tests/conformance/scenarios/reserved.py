"""Scenarios of subjects of JetStream as destinations: a client must not have it send requests or acks in its name."""

from __future__ import annotations

from tests.conformance.harness import Script, scenario, table
from tests.conformance.scenarios.reported import rest

SECOND = 1_000_000_000
RESERVED = ("$JS.API.INFO", "$JS.API", "$JS.ACK.S.c.1.1.1.1.0", "$JS.FC.x", "$JS.SNAPSHOT.x", "$JS.EVENT.x")
OTHERS = ("$JS.hub.API.INFO", "_R_.x", "$GNR.x", "_GR_.x", "$JS.x", "$JS", "$JSC.API", "$SYS.x", "$KV.b.k", "a.$JS.API")
SUBJECTS = [(subject, subject) for subject in (*RESERVED, *OTHERS)]


@table(SUBJECTS)
def deliver_subjects(t: Script, subject: str) -> None:
    t.stream("S", ["s"])
    config = {"durable_name": "c", "deliver_subject": subject, "ack_policy": "none"}
    t.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    config = {"durable_name": "d", "deliver_subject": "to.d", "ack_policy": "none"}
    t.api("CONSUMER.CREATE.S.d", {"stream_name": "S", "config": config})
    t.api("CONSUMER.CREATE.S.d", {"stream_name": "S", "config": {**config, "deliver_subject": subject}})


@table(SUBJECTS)
def backups_to(t: Script, subject: str) -> None:
    t.stream("S", ["s"], storage="file")
    t.fill(["s"])
    answer = t.wire.api("STREAM.SNAPSHOT.S", {"deliver_subject": subject})
    t.note(f"to {subject}", answer.get("error", "accepted"))


@table([row for row in SUBJECTS if row[0] != "_GR_.x"])  # of gateways, which lakestream has none of
def replies(t: Script, subject: str) -> None:
    sid = t.wire.subscribe("s")
    t.wire.publish("s", b"x", subject)
    t.frames(f"with the reply {subject}", t.wire.ping())
    t.wire.unsubscribe(sid)


@table(SUBJECTS)
def republished_to(t: Script, subject: str) -> None:
    t.api(
        "STREAM.CREATE.S",
        {"name": "S", "subjects": ["s.>"], "storage": "memory", "republish": {"src": "s.>", "dest": f"{subject}.>"}},
    )


@scenario
def a_reset_tells_where_it_begins(t: Script) -> None:
    t.stream("S", ["s.*"])
    t.consumer("S", "c")
    t.fill_seen("S", "c", ["s.a"] * 5)
    frames = t.pull("S", "c", {"batch": 4}, 4)
    t.ack(frames[0])
    t.api("CONSUMER.RESET.S.c", {"seq": 3})
    t.pull("S", "c", {"batch": 3}, 3)
    t.api("CONSUMER.RESET.S.c")
    t.numbers("S", "c")


@table([("all", None), ("two", 2), ("five", 5), ("nine", 9)])
def a_reset_of_the_last_of_each_subject(t: Script, seq: int | None) -> None:
    t.stream("S", ["s.*"])
    t.fill(["s.a", "s.b", "s.a", "s.c", "s.b", "s.d"])
    t.consumer("S", "c", deliver_policy="last_per_subject", filter_subject="s.*")
    t.pull("S", "c", {"batch": 3}, 3)
    t.api("CONSUMER.RESET.S.c", {"seq": seq} if seq else None)
    t.fill(["s.a"])
    came = rest(t, "c")
    t.note("messages", len(came))


@scenario
def a_resumed_consumer_answers_waiting_pulls(t: Script) -> None:
    t.stream("S", ["s"])
    t.consumer("S", "c", pause_until="2090-01-01T00:00:00Z")
    t.fill(["s"])
    reply = t.wire.new_reply()
    t.wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":1,"expires":4000000000}', reply)
    t.wire.ping()
    t.api("CONSUMER.PAUSE.S.c", {})
    t.frames("then", t.collect(t.wire, 1))
