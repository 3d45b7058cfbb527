"""Scenarios of another account's JetStream over exports and imports: API, acks, flow control and deliveries."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.conformance.accounts import ACCOUNTS
from tests.conformance.harness import Script, configured, table
from tests.conformance.scenarios import api_requests
from tests.wire import Frame, Wire, WireTimeout

SECOND = 1_000_000_000
SILENT_S = 0.3


def _far(t: Script) -> tuple[Script, Script]:
    """Return the scripts of the account that has the streams and of one that imports its API."""
    return t.as_user("js"), t.as_user("imp", "$JS.far.API", "JS")


def _listening(t: Script, user: str, subject: str) -> tuple[Wire, str]:
    wire = t.connect(user=user)
    sid = wire.subscribe(subject)
    wire.ping()
    return wire, sid


# ---- the API

_MORE: dict[str, Any] = {
    "CONSUMER.UNPIN.S.c": {"group": "g"},
    "DIRECT.GET.S": {"seq": 1},
    "STREAM.SNAPSHOT.NONE": {"deliver_subject": "to"},
    "STREAM.RESTORE.S": {"config": {"name": "S"}, "state": {}},
    "NOTHING": None,
    "STREAM.NOTHING": None,
    "META.LEADER.STEPDOWN": None,
    "SERVER.REMOVE": None,
    "ACCOUNT.PURGE.A": None,
}


def _ask(t: Script, subject: str, body: Any = None, timeout: float = SILENT_S) -> Any:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    try:
        frame = t.wire.request(f"{t.prefix}.{subject}", data, timeout=timeout)
    except WireTimeout:
        t.note(subject, "no answer")
        return None
    answer = frame.json() if frame.data.startswith(b"{") else t.show(frame)
    if isinstance(answer, dict):
        answer.pop("api", None)
        if place := answer.get("deliver_subject"):
            t.hide(place, "<place>")
        if isinstance(name := answer.get("name"), str) and subject == "CONSUMER.CREATE.S":
            t.hide(name, "<name>")
    t.note(subject, answer)
    return answer


@table([(subject, subject, body) for subject, body in (api_requests.REQUESTS | _MORE).items()], ACCOUNTS)
def requests_over_an_import(t: Script, subject: str, body: Any) -> None:
    owner, imp = _far(t)
    owner.stream("S", ["s"])
    owner.consumer("S", "c")
    owner.fill_seen("S", "c", ["s"] * 3)
    _ask(imp, subject, body)
    _ask(imp, subject, b"{x")
    owner.wire.api("STREAM.DELETE.S")
    if "RESET" not in subject:
        _ask(imp, subject, body)


@table([(subject, subject, body) for subject, body in (api_requests.REQUESTS | _MORE).items()], ACCOUNTS)
def requests_over_an_import_of_one_answer(t: Script, subject: str, body: Any) -> None:
    owner, imp = t.as_user("one"), t.as_user("impone", "js.one", "ONE")
    owner.stream("S", ["s"])
    owner.consumer("S", "c")
    owner.fill_seen("S", "c", ["s"] * 3)
    _ask(imp, subject, body)


@configured(ACCOUNTS)
def the_own_api_beside_an_imported_one(t: Script) -> None:
    owner, imp = _far(t)
    near, far = t.as_user("mir"), t.as_user("nojs")
    owner.stream("S", ["s"])
    near.stream("N", ["n"])
    near.api("STREAM.NAMES")
    near.note("far", near.wire.request("$JS.far.API.STREAM.NAMES").json())
    near.note("none", near.show(near.wire.request("$JS.none.API.STREAM.NAMES")))
    far.note("not imported", far.show(far.wire.request("$JS.far.API.STREAM.NAMES")))
    imp.note("own", imp.wire.request("$JS.API.STREAM.NAMES").json())


@configured(ACCOUNTS)
def the_audit_of_a_request_over_an_import(t: Script) -> None:
    owner, imp = _far(t)
    # Only the API audit: nats-server publishes a stream's own advisory before or after it, as in a race.
    heard = [_listening(t, user, "$JS.EVENT.ADVISORY.API") for user in ("js", "imp")]
    imp.wire.ping()
    _ask(imp, "STREAM.CREATE.S", {"name": "S", "storage": "memory"})
    _ask(imp, "STREAM.INFO.NONE")
    _ask(imp, "STREAM.DELETE.S")
    owner.wire.api("STREAM.NAMES")
    for wire, sid in heard[:1]:
        for frame in t.collect(wire, 4, sid=sid):
            event = frame.json()
            for varying in ("id", "timestamp"):
                event.pop(varying)
            client = event.get("client", {})
            event["client"] = {key: client[key] for key in ("acc", "svc", "user", "name", "kind") if key in client}
            event.pop("response", None)
            t.note(frame.subject, event)
    t.note("in the importer", len(heard[1][0].ping()))


@configured(ACCOUNTS)
def counts_are_of_the_account_that_was_asked(t: Script) -> None:
    owner, _ = _far(t)
    near = t.as_user("mir")

    def counts(who: Script) -> Any:
        api = who.wire.api("INFO")["api"]
        return api["total"], api["errors"]

    before = counts(owner), counts(near)
    near.wire.request("$JS.far.API.STREAM.INFO.NONE")
    near.wire.request("$JS.far.API.STREAM.NAMES")
    after = counts(owner), counts(near)
    t.note("owner", [b - a for a, b in zip(before[0], after[0], strict=True)])
    t.note("importer", [b - a for a, b in zip(before[1], after[1], strict=True)])


# ---- publishing


@configured(ACCOUNTS)
def publishing_over_an_import(t: Script) -> None:
    owner, imp = _far(t)
    owner.stream("S", ["s"], max_msg_size=100)
    owner.stream("KV_b", ["$KV.b.>"], allow_direct=True, max_msgs_per_subject=1)
    imp.publish("s", b"1")
    imp.publish("s", b"1", {"Nats-Msg-Id": "a", "Own": "x"})
    imp.publish("s", b"1", {"Nats-Msg-Id": "a"})
    imp.publish("s", b"x" * 101)
    imp.publish("s", b"x" * 100)
    imp.publish("s", b"1", {"Nats-Expected-Last-Sequence": "9"})
    imp.publish("$KV.b.key", b"v")
    imp.publish("$KV.none.key", b"v")
    owner.state("S")
    for seq in (1, 2):
        _message(owner, "S", seq)
    _ask(imp, "DIRECT.GET.KV_b.$KV.b.key")
    imp.wire.publish("s", b"without reply")
    imp.wire.ping()
    owner.state_when("S", lambda state: state["messages"] == 4)


def _message(t: Script, stream: str, seq: int) -> None:
    """Record MSG.GET with readable headers."""
    message = t.wire.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})["message"]
    message["hdrs"] = base64.b64decode(message.get("hdrs", "")).decode()
    t.note(f"message {seq}", message)


@configured(ACCOUNTS)
def request_info_is_never_stored(t: Script) -> None:
    owner, imp = _far(t)
    owner.stream("S", ["s"])
    for who in (owner, imp):
        who.publish("s", b"1", {"Nats-Request-Info": '{"acc":"X"}'})
        who.publish("s", b"1", {"Before": "1", "Nats-Request-Info": '{"acc":"X"}', "After": "2"})
        who.publish("s", b"1", {"Nats-Request-Information": "kept", "X-Nats-Request-Info": "kept"})
    for seq in range(1, 7):
        _message(owner, "S", seq)
    owner.state("S")


@configured(ACCOUNTS)
def a_stream_of_what_is_imported(t: Script) -> None:
    owner, near = t.as_user("js"), t.as_user("mir")
    near.stream("S", ["via.ev.>"])
    owner.wire.publish("ev.1", b"m", owner.wire.new_reply(), {"Own": "x"})
    owner.wire.publish("ev.2.3", b"m")
    near.state_when("S", lambda state: state["messages"] == 2)
    near.wire.publish("via.ev.4", b"m")  # a message of its own account
    near.wire.ping()
    owner.wire.publish("ev.5", b"m")
    near.state_when("S", lambda state: state["messages"] == 4)
    for seq in range(1, 5):
        _message(near, "S", seq)
    t.note("acks in the exporter", len(owner.wire.ping()))


# ---- pull


def _filled(owner: Script, count: int = 5, **config: Any) -> None:
    owner.stream("S", ["s"], allow_direct=True)
    owner.consumer("S", "c", **config)
    owner.fill_seen("S", "c", ["s"] * count)


def _numbers(t: Script, ready: Any) -> None:
    t.numbers_when("S", "c", ready)


@configured(ACCOUNTS)
def pulling_over_an_import(t: Script) -> None:
    owner, imp = _far(t)
    _filled(owner)
    frames = imp.pull("S", "c", {"batch": 2}, 2)
    frames += imp.pull("S", "c", {"batch": 5, "no_wait": True}, 4)
    imp.pull("S", "c", {"batch": 1, "no_wait": True}, 1)
    imp.pull("S", "c", {"batch": 1, "expires": SECOND // 10}, 1)
    imp.pull("S", "c", {"batch": 1, "expires": SECOND // 5, "idle_heartbeat": SECOND // 10}, 2)
    imp.pull("S", "none", {"batch": 1}, 1)
    imp.pull("S", "c", {"batch": 1, "idle_heartbeat": SECOND}, 1)
    owner.numbers("S", "c")


@configured(ACCOUNTS)
def a_pull_waits_for_messages(t: Script) -> None:
    owner, imp = _far(t)
    _filled(owner, 0)
    wire = imp.wire
    reply = wire.new_reply()
    wire.publish("$JS.far.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":3,"expires":5000000000}', reply)
    _numbers(owner, lambda info: info["num_waiting"] == 1)
    for _ in range(3):
        owner.publish("s", b"m")
        t.frames("delivered", t.collect(wire, 1))
    _numbers(owner, lambda info: info["num_waiting"] == 0)


@table([(name, name) for name in ("UNSUB", "closed")], ACCOUNTS)
def who_pulled_has_gone(t: Script, how: str) -> None:
    owner, _ = _far(t)
    _filled(owner, 0)
    wire = t.connect(user="imp")
    sid = wire.subscribe("gone")
    wire.publish("$JS.far.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":3,"expires":20000000000}', "gone")
    wire.ping()
    _numbers(owner, lambda info: info["num_waiting"] == 1)
    if how == "UNSUB":
        wire.unsubscribe(sid)
        wire.ping()
    else:
        wire.close()
        _closed(t, "imp")
    owner.publish("s", b"m")
    _numbers(owner, lambda info: info["num_waiting"] == 0)


def _closed(t: Script, user: str) -> None:
    """Wait until the server has removed the interest of a closed connection, with requests of another one."""
    other = t.connect(user=user)
    while other.request("gone").status != 503:
        pass


@configured(ACCOUNTS)
def a_pull_over_an_import_of_one_answer(t: Script) -> None:
    owner, imp = t.as_user("one"), t.as_user("impone", "js.one", "ONE")
    _filled(owner)
    imp.pull("S", "c", {"batch": 3, "expires": SECOND // 10}, 1)
    t.note("more", len(imp.wire.ping()))
    _numbers(owner, lambda info: info["delivered"]["consumer_seq"] >= 1)
    imp.pull("S", "none", {"batch": 1}, 1)
    imp.api("STREAM.INFO.S", {"subjects_filter": ">"})


@configured(ACCOUNTS)
def batched_direct_gets_over_imports(t: Script) -> None:
    owner, imp = _far(t)
    _filled(owner)
    imp.direct("S", {"seq": 1, "batch": 3}, 0)
    imp.direct("S", {"seq": 4, "batch": 10}, 0)
    one, behind = t.as_user("one"), t.as_user("impone", "js.one", "ONE")
    _filled(one)
    behind.direct("S", {"seq": 1, "batch": 3}, 1)
    t.note("more", len(behind.wire.ping()))


# ---- acknowledgements


@table(
    [
        (name, body)
        for name, body in (
            ("ack", b"+ACK"),
            ("nak", b"-NAK"),
            ("progress", b"+WPI"),
            ("term", b"+TERM"),
            ("empty", b""),
        )
    ],
    ACCOUNTS,
)
def acks_over_an_import(t: Script, body: bytes) -> None:
    owner, imp = _far(t)
    _filled(owner)
    frame = imp.pull("S", "c", {"batch": 1}, 1)[0]
    try:
        t.note("answer", t.show(imp.wire.request(frame.reply, body, timeout=SILENT_S)))
    except WireTimeout:
        t.note("answer", "none")
    owner.numbers("S", "c")
    frame = imp.pull("S", "c", {"batch": 1}, 1)[0]
    imp.wire.publish(frame.reply, body)
    if body in (b"+ACK", b"+TERM", b""):
        _numbers(owner, lambda info: info["ack_floor"]["consumer_seq"] == 2)


@configured(ACCOUNTS)
def acks_that_are_not_imported(t: Script) -> None:
    owner, near = t.as_user("js"), t.as_user("mir")
    _filled(owner)
    reply = near.wire.new_reply()
    near.wire.publish("$JS.far.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":1}', reply)
    frame = t.collect(near.wire, 1)[0]
    t.note("ack", t.show(near.wire.request(frame.reply, b"+ACK")))
    owner.numbers("S", "c")


@configured(ACCOUNTS)
def acks_of_ones_own_and_of_imported_streams(t: Script) -> None:
    owner, both = t.as_user("js"), t.as_user("both")
    _filled(owner)
    both.stream("NEAR", ["near"])
    both.consumer("NEAR", "n")
    both.fill_seen("NEAR", "n", ["near"] * 2)
    for prefix, stream, consumer in (("$JS.far.API", "S", "c"), ("$JS.API", "NEAR", "n")) * 2:
        reply = both.wire.new_reply()
        both.wire.publish(f"{prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}", b'{"batch":1}', reply)
        frame = t.collect(both.wire, 1)[0]
        t.frames(f"of {stream}", [frame])
        t.note("ack", t.show(both.wire.request(frame.reply, b"+ACK")))
        t.note("more", [t.show(frame) for frame in both.wire.ping()])
    owner.numbers("S", "c")
    both.numbers("NEAR", "n")


# ---- push


def _headers(frame: Frame) -> Any:
    return (frame.subject, frame.header.decode(), frame.data)


@configured(ACCOUNTS)
def pushing_over_an_import(t: Script) -> None:
    owner, imp = _far(t)
    owner.stream("S", ["s"])
    owner.fill(["s"] * 5)
    wire, sid = _listening(t, "imp", "dlv.me")
    fields = {"durable_name": "c", "ack_policy": "explicit", "deliver_subject": "dlv.me", "max_ack_pending": 2}
    imp.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": fields})
    for _ in range(5):
        frame = wire.delivered(sid)
        t.frames("delivered", [frame])
        t.note("ack", t.show(imp.wire.request(frame.reply, b"+ACK")))
    owner.numbers("S", "c")
    wire.unsubscribe(sid)
    wire.ping()
    owner.publish("s", b"m")
    _numbers(owner, lambda info: not info.get("push_bound"))


@configured(ACCOUNTS)
def pushing_under_a_prefix(t: Script) -> None:
    owner, near = t.as_user("js"), t.as_user("mir")
    owner.stream("S", ["s"])
    owner.fill(["s"] * 2)
    wire, sid = _listening(t, "mir", "via.dlv.me")
    owner.consumer("S", "c", deliver_subject="dlv.me", idle_heartbeat=SECOND // 5)
    frames = t.collect(wire, 3, sid=sid)
    t.frames("delivered", frames)
    owner.numbers("S", "c")
    near.note("no ack", near.show(near.wire.request(frames[0].reply, b"+ACK")))


@configured(ACCOUNTS)
def a_wildcard_over_an_import_binds_no_consumer(t: Script) -> None:
    owner, _ = _far(t)
    owner.stream("S", ["s"])
    owner.fill(["s"])
    wire, _ = _listening(t, "imp", "dlv.*")
    owner.consumer("S", "c", deliver_subject="dlv.me")
    owner.numbers("S", "c")
    t.note("heard", len(wire.ping()))


@configured(ACCOUNTS)
def pushing_to_a_group_over_an_import(t: Script) -> None:
    owner, _ = _far(t)
    owner.stream("S", ["s"])
    wire = t.connect(user="imp")
    sid = wire.subscribe("dlv.me", "g")
    wire.ping()
    owner.consumer("S", "c", deliver_subject="dlv.me", deliver_group="g")
    owner.fill(["s"] * 2)
    t.frames("delivered", t.collect(wire, 2, sid=sid))
    owner.numbers("S", "c")
    alone, alone_sid = _listening(t, "imp", "dlv.other")
    owner.consumer("S", "d", deliver_subject="dlv.other", deliver_group="g")
    owner.numbers("S", "d")
    t.note("without the group", len(alone.ping()))
    alone.unsubscribe(alone_sid)


@configured(ACCOUNTS)
def flow_control_over_an_import(t: Script) -> None:
    owner, _ = _far(t)
    owner.stream("S", ["s"])
    owner.fill(["s"] * 200, b"x" * 2000)
    wire, sid = _listening(t, "imp", "dlv.me")
    owner.consumer("S", "c", deliver_subject="dlv.me", flow_control=True, idle_heartbeat=5 * SECOND, ack_policy="none")
    messages = requests = 0
    while messages < 200:
        frame = wire.delivered(sid)
        if frame.status == 100:
            if frame.reply:
                requests += 1
                wire.publish(frame.reply)
        else:
            messages += 1
    t.note("asked to say how far it is", requests > 0)
    t.note("messages", messages)
    _numbers(owner, lambda info: info["num_pending"] == 0)


@configured(ACCOUNTS)
def an_ordered_consumer_over_an_import(t: Script) -> None:
    owner, imp = _far(t)
    owner.stream("S", ["s"])
    owner.fill(["s"] * 3)
    wire, sid = _listening(t, "imp", "dlv.ordered")
    fields = {
        "name": "o", "deliver_subject": "dlv.ordered", "flow_control": True, "idle_heartbeat": SECOND // 5,
        "ack_policy": "none", "max_deliver": 1, "mem_storage": True, "num_replicas": 1,
        "inactive_threshold": 5 * SECOND,
    }  # fmt: skip
    imp.api("CONSUMER.CREATE.S.o", {"stream_name": "S", "config": fields})
    t.frames("delivered", t.collect(wire, 4, sid=sid))
    imp.api("CONSUMER.DELETE.S.o")


# ---- backups


@configured(ACCOUNTS)
def a_snapshot_over_an_import(t: Script) -> None:
    owner, imp = _far(t)
    owner.stream("S", ["s"], storage="file")
    owner.fill(["s"] * 3)
    wire, sid = _listening(t, "imp", "dlv.chunks")
    answer = imp.wire.api("STREAM.SNAPSHOT.S", {"deliver_subject": "dlv.chunks", "chunk_size": 1024})
    t.note("state", answer.get("state", answer))
    size = 0
    while (frame := wire.delivered(sid)).data:
        size += len(frame.data)
        t.note("acks go to", bool(frame.reply))
    t.note("last", frame.header.decode())
    t.note("some", size > 0)
