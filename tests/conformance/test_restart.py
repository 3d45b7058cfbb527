"""Tests of restarts: streams, messages, consumers and duplicate windows are the same afterwards."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from tests.chaos.audit import read_all
from tests.conftest import Recorded, StartServer
from tests.servers import Kind, Server
from tests.wire import Frame, Wire

pytestmark = pytest.mark.conformance

SECOND = 1_000_000_000


def _api(wire: Wire, subject: str, body: Any = None) -> Any:
    answer = wire.api(subject, body)
    assert "error" not in answer, answer
    return answer


def _build(wire: Wire) -> None:
    """Create streams of several kinds, with gaps and purges, and consumers in several states."""
    common = {"storage": "file", "allow_direct": True}
    _api(wire, "STREAM.CREATE.PLAIN", {"name": "PLAIN", "subjects": ["p.*"], "description": "d", **common})
    _api(wire, "STREAM.CREATE.SMALL", {"name": "SMALL", "subjects": ["s.*"], "max_msgs": 10, **common})
    kv = {"name": "KV_b", "subjects": ["$KV.b.>"], "max_msgs_per_subject": 2, "allow_rollup_hdrs": True, **common}
    _api(wire, "STREAM.CREATE.KV_b", kv)
    _api(wire, "STREAM.CREATE.EMPTIED", {"name": "EMPTIED", "subjects": ["e"], **common})
    _api(wire, "STREAM.CREATE.UNUSED", {"name": "UNUSED", "subjects": ["u"], "first_seq": 50, **common})
    for n in range(60):
        for subject in (f"p.{n % 7}", f"s.{n % 3}", f"$KV.b.{n % 11}", "e"):
            wire.request(subject, b"%d" % n, {"Nats-Msg-Id": f"{subject}-{n}"} if n % 2 else None)
    for seq in (1, 2, 9, 30, 60):
        _api(wire, "STREAM.MSG.DELETE.PLAIN", {"seq": seq})
    _api(wire, "STREAM.PURGE.PLAIN", {"filter": "p.3", "keep": 1})
    _api(wire, "STREAM.PURGE.EMPTIED")
    wire.request("$KV.b.4", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    _api(wire, "STREAM.CREATE.GONE", {"name": "GONE", "subjects": ["g"], **common})
    _api(wire, "STREAM.DELETE.GONE")


def _consume(wire: Wire) -> None:
    for name, config in {
        "explicit": {"ack_policy": "explicit"},
        "filtered": {"ack_policy": "explicit", "filter_subjects": ["p.1", "p.5"], "description": "f"},
        "all": {"ack_policy": "all"},
        "untouched": {"ack_policy": "explicit", "deliver_policy": "by_start_sequence", "opt_start_seq": 20},
    }.items():
        body = {"stream_name": "PLAIN", "config": {"durable_name": name, "ack_wait": 600 * SECOND, **config}}
        _api(wire, f"CONSUMER.CREATE.PLAIN.{name}", body)
    for name in ("explicit", "filtered", "all"):
        wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.PLAIN.{name}", b'{"batch":8,"no_wait":true}', wire.new_reply())
        frames = [wire.next() for _ in range(8)]
        for at in (0, 1, 4, 5):
            assert not wire.request(frames[at].reply, b"+ACK").data


def _known(wire: Wire) -> dict[str, Any]:
    """Return everything that a client can request, without times of requests."""
    known: dict[str, Any] = {}
    for name in _api(wire, "STREAM.NAMES")["streams"]:
        info = _api(wire, f"STREAM.INFO.{name}", {"subjects_filter": ">", "deleted_details": True})
        info.pop("ts")
        known[name] = info
        known[f"{name} messages"] = list(read_all(wire, name))
        for consumer in _api(wire, f"CONSUMER.LIST.{name}")["consumers"]:
            consumer.pop("ts")
            for place in ("delivered", "ack_floor"):
                consumer[place].pop("last_active", None)  # nats-server forgets it
            known[f"{name} {consumer['name']}"] = consumer
    return known


def _stop_and_start(server: Server, how: signal.Signals) -> None:
    code = server.stop(how)
    assert code in (0, 1), f"exit code {code} after {how.name}"
    server.start()


def test_nothing_is_forgotten(start_server: StartServer) -> None:
    server = start_server()
    with Wire(server.address, timeout=20) as wire:
        _build(wire)
        _consume(wire)
        before = _known(wire)
    for how in (signal.SIGTERM, signal.SIGINT):
        _stop_and_start(server, how)
        with Wire(server.address, timeout=20) as wire:
            after = _known(wire)
        assert after == before


def test_it_goes_on_where_it_was(start_server: StartServer) -> None:
    server = start_server()
    with Wire(server.address, timeout=20) as wire:
        _build(wire)
        _consume(wire)
        last = _api(wire, "STREAM.INFO.PLAIN")["state"]["last_seq"]
    for n in range(1, 4):
        _stop_and_start(server, signal.SIGTERM)
        with Wire(server.address, timeout=20) as wire:
            assert wire.request("p.1", b"again", {"Nats-Msg-Id": "p.1-57"}).json()["duplicate"]
            assert wire.request("p.new", b"%d" % n).json() == {"stream": "PLAIN", "seq": last + n}
            wrong = wire.request("p.new", b"", {"Nats-Expected-Last-Subject-Sequence": str(last + n - 1)}).json()
            assert wrong["error"]["err_code"] == 10071
            assert wire.request("u", b"").json()["seq"] == 49 + n
            assert wire.request("e", b"").json()["seq"] == 60 + n
            wire.publish("$JS.API.CONSUMER.MSG.NEXT.PLAIN.explicit", b'{"batch":1}', wire.new_reply())
            frame = wire.next()
            assert (frame.reply.split(".")[4], frame.reply.split(".")[6]) == ("1", str(8 + n)), frame.reply
            assert not wire.request(frame.reply, b"+ACK").data
            assert _api(wire, "CONSUMER.INFO.PLAIN.explicit")["num_ack_pending"] == 4


def test_an_unacked_message_comes_again_after_the_restart(start_server: StartServer) -> None:
    server = start_server()
    with Wire(server.address, timeout=20) as wire:
        _api(wire, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"})
        config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": SECOND}
        _api(wire, "CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
        for n in range(3):
            wire.request("s", b"%d" % n)
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":3}', wire.new_reply())
        frames = [wire.next() for _ in range(3)]
        assert not wire.request(frames[1].reply, b"+ACK").data
    _stop_and_start(server, signal.SIGTERM)
    with Wire(server.address, timeout=20) as wire:
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":2,"expires":10000000000}', wire.new_reply())
        again = [wire.next() for _ in range(2)]
        assert [(frame.data, frame.reply.split(".")[4]) for frame in again] == [(b"0", "2"), (b"2", "2")]


def test_memory_streams_are_gone_and_file_streams_are_not(start_server: StartServer) -> None:
    server = start_server()
    with Wire(server.address, timeout=20) as wire:
        for name, storage in (("M", "memory"), ("F", "file")):
            _api(wire, f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "storage": storage})
            wire.request(name, b"x")
    _stop_and_start(server, signal.SIGTERM)
    with Wire(server.address, timeout=20) as wire:
        assert _api(wire, "STREAM.NAMES")["streams"] == ["F"]
        assert _api(wire, "STREAM.INFO.F")["state"]["messages"] == 1


def test_a_stream_that_begins_as_high_as_any_goes_on(start_server: StartServer) -> None:
    first = 1 << 62
    server = start_server()
    with Wire(server.address, timeout=20) as wire:
        common = {"name": "HIGH", "subjects": ["h"], "storage": "file", "allow_direct": True}
        for refused in (first + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
            answer = wire.api("STREAM.CREATE.HIGH", {**common, "first_seq": refused})
            assert answer["error"]["err_code"] == 10052, answer
        _api(wire, "STREAM.CREATE.HIGH", {**common, "first_seq": first})
        refused_update = wire.api("STREAM.UPDATE.HIGH", {**common, "first_seq": (1 << 64) - 1})
        assert refused_update["error"]["err_code"] == 10052, refused_update
    published = 0
    for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        with Wire(server.address, timeout=20) as wire:
            for _ in range(2):
                assert wire.request("h", b"%d" % published).json() == {"stream": "HIGH", "seq": first + published}
                published += 1
        server.stop(how)
        server.start()
        with Wire(server.address, timeout=20) as wire:
            assert [message.data for message in read_all(wire, "HIGH")] == [b"%d" % n for n in range(published)]
    with Wire(server.address, timeout=20) as wire:
        assert _api(wire, "STREAM.PURGE.HIGH", {"seq": first + published - 1})["purged"] == published - 1
        assert [message.seq for message in read_all(wire, "HIGH")] == [first + published - 1]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_lifetimes_and_counters_go_on(start_server: StartServer, how: signal.Signals) -> None:
    server = start_server()
    with Wire(server.address, timeout=20) as wire:
        for name, config in {
            "TTL": {"allow_msg_ttl": True, "max_age": 3600 * SECOND},
            "MARKED": {"subject_delete_marker_ttl": SECOND},
            "COUNTED": {"allow_msg_counter": True},
        }.items():
            common = {"name": name, "subjects": [f"{name}.*"], "storage": "file", "allow_direct": True}
            _api(wire, f"STREAM.CREATE.{name}", common | config)
        for stream in ("TTL", "MARKED"):
            for subject, ttl in (("never", "never"), ("soon", "1"), ("later", "2")):
                assert wire.request(f"{stream}.{subject}", b"x", {"Nats-TTL": ttl}).json()["seq"]
        for value in ("5", "7"):
            counted = wire.request("COUNTED.a", b"", {"Nats-Incr": value, "Nats-Msg-Id": value}).json()
        assert counted["val"] == "12"
    server.stop(how)
    server.start()
    with Wire(server.address, timeout=20) as wire:
        assert wire.request("COUNTED.a", b"", {"Nats-Incr": "7", "Nats-Msg-Id": "7"}).json()["duplicate"]
        assert wire.request("COUNTED.a", b"", {"Nats-Incr": "-2"}).json()["val"] == "10"
        sid = wire.subscribe("follow")
        config = {"deliver_subject": "follow", "ack_policy": "none", "filter_subject": "MARKED.*"}
        _api(wire, "CONSUMER.CREATE.MARKED", {"stream_name": "MARKED", "config": config | {"deliver_policy": "all"}})
        followed = [wire.delivered(sid) for _ in range(2)]
        while followed[-1].subject != "MARKED.later" or b"MaxAge" not in followed[-1].header:
            followed.append(wire.delivered(sid))
        assert sum(b"MaxAge" in frame.header for frame in followed) == 2, "one marker each, and none for what stays"
        deadline = time.monotonic() + 5
        for stream in ("TTL", "MARKED"):
            while _api(wire, f"STREAM.INFO.{stream}")["state"]["messages"] > 1:
                assert time.monotonic() < deadline, f"{stream} keeps what has run out"
                time.sleep(0.02)
            assert [message.subject for message in read_all(wire, stream)] == [f"{stream}.never"]


FILTERS = {
    "one": ["p.b"],
    "two": ["p.a", "p.b"],
    "patterns": ["p.*.x", "p.c"],
    "every": [],
}
REMOVALS: list[tuple[str, dict[str, Any]]] = [
    ("STREAM.PURGE.P", {"filter": "p.b"}),
    ("STREAM.PURGE.P", {"filter": "p.a", "keep": 1}),
    ("STREAM.PURGE.P", {"seq": 12}),
    ("STREAM.MSG.DELETE.P", {"seq": 15}),
    ("STREAM.PURGE.P", {}),
]


def _drained(wire: Wire, consumer: str, batch: int) -> list[int]:
    """Return the sequences of what a consumer has to deliver, at most `batch`; all acks are confirmed."""
    body = json.dumps({"batch": batch, "no_wait": True}).encode()
    wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.P.{consumer}", body, wire.new_reply())
    frames: list[Frame] = []
    while len(frames) < batch and not (frame := wire.delivered(wire.inbox_sid)).status:
        frames.append(frame)
    for frame in frames:
        assert not wire.request(frame.reply, b"+ACK").data
    return [int(frame.reply.split(".")[5]) for frame in frames]


def _removed_and_restarted(server: Server, how: signal.Signals, removals: int) -> list[Any]:
    """Return what consumers deliver before and after these removals and a restart."""
    subjects = ["p.a", "p.b", "p.c", "p.b.x", "p.a", "p.d"] * 3
    with Wire(server.address, timeout=20) as wire:
        _api(wire, "STREAM.CREATE.P", {"name": "P", "subjects": ["p.>"], "allow_rollup_hdrs": True})
        for name, filters in FILTERS.items():
            config = {"durable_name": name, "ack_policy": "explicit", "filter_subjects": filters}
            _api(wire, f"CONSUMER.CREATE.P.{name}", {"stream_name": "P", "config": config})
        for subject in subjects:
            wire.request(subject, b"x")
        told: list[Any] = [{name: _drained(wire, name, 2) for name in FILTERS}]
        for subject, body in REMOVALS[:removals]:
            _api(wire, subject, body)
        wire.request("p.c", b"x", {"Nats-Rollup": "sub"})
    if how is signal.SIGKILL:
        server.kill()
    else:
        server.stop(how)
    server.start()
    with Wire(server.address, timeout=20) as wire:
        told.append({name: _api(wire, f"CONSUMER.INFO.P.{name}")["num_pending"] for name in FILTERS})
        for subject in subjects:
            wire.request(subject, b"x")
        told.append({name: _drained(wire, name, 100) for name in FILTERS})
    return told


@pytest.mark.parametrize("removals", [1, 3, 5])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_consumer_skips_nothing_after_removals_and_a_restart(
    start_server: StartServer, recorded: Recorded, how: signal.Signals, removals: int
) -> None:
    expected = recorded(lambda: _removed_and_restarted(start_server(of=Kind.REAL), how, removals))
    assert _removed_and_restarted(start_server(), how, removals) == expected
