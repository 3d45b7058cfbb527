"""Scenarios of advisories about streams and requests (docs/internals/api.md#advisories)."""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, configured, scenario
from tests.wire import Wire


def _listening(t: Script, subject: str) -> tuple[Wire, str]:
    wire = t.connect()
    sid = wire.subscribe(subject)
    wire.ping()
    return wire, sid


@scenario
def a_streams_life(t: Script) -> None:
    """Record the advisories of a stream's life without its deletion.

    nats-server sometimes deletes a stream before it has published the last advisories.
    """
    wire, sid = _listening(t, "$JS.EVENT.ADVISORY.STREAM.>")
    config = {"name": "S", "subjects": ["s"], "storage": "memory"}
    for verb, body in (
        ("CREATE", config),
        ("CREATE", config),
        ("CREATE", {**config, "max_msgs": 5}),
        ("UPDATE", {**config, "storage": "file"}),
        ("PURGE", None),
        ("UPDATE", config),
        ("UPDATE", {**config, "max_msgs": 5}),
    ):
        t.wire.api(f"STREAM.{verb}.S", body)
    frames = [wire.delivered(sid) for _ in range(3)]
    t.note("advisories", [(frame.subject, frame.json() | {"id": "<id>"}) for frame in frames])


def _audited(t: Script, subject: str, body: Any = None) -> None:
    """Send an API request; return its audit advisory."""
    wire, sid = _listening(t, "$JS.EVENT.ADVISORY.API")
    asking = t.connect(name="me", lang="py", version="1.2", user="u")
    asking.ping()
    asking.api(subject, body)
    event = wire.delivered(sid).json() | {"id": "<id>"}
    event["client"] |= {"id": "<id>"}
    for whole_life in ("total", "errors"):
        event["response"] = event["response"].replace(f'"{whole_life}":', f'"{whole_life}": ')
    event["response"] = event["response"].partition('"ts":')[0].partition('"api":')[0]
    t.note(f"audit of {subject}", event)


@scenario
def requests_are_audited(t: Script) -> None:
    t.stream("S", ["s"])
    t.fill(["s"] * 3)
    _audited(t, "STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "storage": "memory", "max_msgs": 9})
    _audited(t, "STREAM.MSG.DELETE.S", {"seq": 1})
    _audited(t, "STREAM.PURGE.S")
    _audited(t, "STREAM.NAMES")
    _audited(t, "CONSUMER.NAMES.S", b"{}")
    _audited(t, "INFO")


@scenario
def refused_requests_are_audited(t: Script) -> None:
    _audited(t, "STREAM.INFO.NONE")
    _audited(t, "STREAM.CREATE.S", b"{nonsense")
    _audited(t, "STREAM.CREATE.S", {"name": "T"})


@scenario
def reading_a_message_is_audited_only_when_refused(t: Script) -> None:
    t.stream("S", ["s"])
    t.fill(["s"])
    wire, sid = _listening(t, "$JS.EVENT.ADVISORY.API")
    t.wire.api("STREAM.MSG.GET.S", {"seq": 1})
    t.wire.api("STREAM.MSG.GET.S", {"seq": 2})
    t.wire.api("STREAM.MSG.GET.S")
    t.wire.api("STREAM.INFO.S")
    told = [wire.delivered(sid).json() for _ in range(3)]
    t.note("audited", [(event["subject"], event.get("request")) for event in told])


@scenario
def reading_a_message_is_not_counted(t: Script) -> None:
    t.stream("S", ["s"])
    t.fill(["s"])

    def counted() -> int:
        return int(t.wire.api("INFO")["api"]["total"])

    before = counted()
    t.wire.api("STREAM.MSG.GET.S", {"seq": 1})
    t.wire.api("STREAM.MSG.GET.S", {"seq": 2})
    t.note("counted", counted() - before)


@configured("jetstream { strict: false }\n")
def lenient_requests(t: Script) -> None:
    for body in (
        b'{"name":"S","storage":"memory","colour":1}',
        b'{"name":"S","storage":"memory","placement":{"foo":1}}',
        b'{"name":"S","max_msgs":"5","colour":2}',
        b'{"name":"S","storage":"tape"}',
        b'{"name":"S"} x',
        b'{"name":"S","storage":"memory"}{"max_msgs":4}',
        b"hello",
        b'{"name":"S"',
        b'{"name":"S",}',
        b'{"name" "S"}',
        b'{"name":tru}',
        b'{"name":"\\x"}',
        b"[]",
        b'{"name":"S","subjects":["a",1]}',
    ):
        t.api("STREAM.CREATE.S", body)
    t.stream("T", ["t"])
    for subject, asked in (
        ("STREAM.INFO.T", {"foo": 1}),
        ("STREAM.NAMES", {"foo": 1}),
        ("STREAM.LIST", b"{x"),
        ("STREAM.PURGE.T", {"foo": 1}),
        ("STREAM.PURGE.T", {"seq": "1"}),
        ("STREAM.MSG.GET.T", {"seq": 1, "foo": 2}),
        ("STREAM.MSG.DELETE.T", {"seq": 1, "foo": 2}),
        ("CONSUMER.CREATE.T.c", {"stream_name": "T", "foo": 1, "config": {"name": "c", "bar": 2}}),
        ("CONSUMER.NAMES.T", {"foo": 1}),
        ("CONSUMER.PAUSE.T.c", {"foo": 1}),
    ):
        t.api(subject, asked)
