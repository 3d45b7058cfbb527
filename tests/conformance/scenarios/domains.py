"""Scenarios of a server with a JetStream domain: API prefix, mapped subjects, and the domain in answers.

See docs/internals/api.md#requests.
"""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.harness import Script, configured
from tests.wire import WireTimeout

DOMAIN = "jetstream { domain: D }\n"


def _ask(t: Script, subject: str, body: Any = None, *, silent: bool = False) -> None:
    """Send a request to a full subject; record the answer."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    try:
        frame = t.wire.request(subject, data, timeout=0.2 if silent else t.timeout)
    except WireTimeout:
        t.note(subject, "no answer")
        return
    try:
        answer = frame.json()
    except ValueError:
        answer = t.show(frame)
    if isinstance(answer, dict) and "api" in answer:
        answer["api"] = sorted(answer["api"])  # counters over the server's whole life
    t.note(subject, answer)


@configured(DOMAIN)
def the_api_listens_under_both_prefixes(t: Script) -> None:
    for prefix in ("$JS.API", "$JS.D.API"):
        _ask(t, f"{prefix}.INFO")
        _ask(t, f"{prefix}.STREAM.CREATE.S", {"name": "S", "storage": "memory", "subjects": ["s"]})
        _ask(t, f"{prefix}.STREAM.UPDATE.S", {"name": "S", "storage": "memory", "subjects": ["s"], "max_msgs": 5})
        _ask(t, f"{prefix}.STREAM.INFO.S")
        _ask(t, f"{prefix}.STREAM.NAMES")
        _ask(t, f"{prefix}.STREAM.LIST")
        config = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
        _ask(t, f"{prefix}.CONSUMER.CREATE.S.c", config)
        _ask(t, f"{prefix}.CONSUMER.INFO.S.c")
        _ask(t, f"{prefix}.CONSUMER.LIST.S")
        _ask(t, f"{prefix}.STREAM.PURGE.S")
        _ask(t, f"{prefix}.STREAM.DELETE.S")
        _ask(t, f"{prefix}.STREAM.INFO.S")


@configured(DOMAIN)
def other_domains_have_no_responders(t: Script) -> None:
    for subject in ("E.API.INFO", "E.API.STREAM.NAMES", "E.API.$KV.b.x", "D.STREAM.NAMES", "D.INFO"):
        _ask(t, f"$JS.{subject}")


@configured(DOMAIN)
def unknown_requests_under_the_domains_prefix(t: Script) -> None:
    for subject in ("NOTHING", "p", "$KV.none.x", "$O.none.x", "CONSUMER.MSG.NEXT.S.c", "DIRECT.GET.S"):
        _ask(t, f"$JS.D.API.{subject}")
    for subject in ("STREAM.NOTHING", "META.NOTHING", "SERVER.NOTHING", "CONSUMER.NOTHING"):
        _ask(t, f"$JS.D.API.{subject}", silent=True)


@configured(DOMAIN)
def stores_are_mapped(t: Script) -> None:
    t.stream("KV_b", ["$KV.b.>"], allow_direct=True)
    t.stream("OBJ_b", ["$O.b.>"])
    t.stream("OBJ2", ["$OBJ.b.>"])
    t.stream("P", ["p"])
    for subject in ("$KV.b.x", "$JS.D.API.$KV.b.x", "$JS.D.API.$O.b.x", "$JS.D.API.$OBJ.b.x", "$JS.D.API.p", "p"):
        _ask(t, subject, b"v")
    for name in ("KV_b", "OBJ_b", "OBJ2", "P"):
        t.state(name)
    frame = t.wire.request("$JS.D.API.DIRECT.GET.KV_b.$KV.b.x")
    t.note("direct get", (frame.data, sorted(frame.headers)))


@configured(DOMAIN)
def pub_acks_and_errors_name_it(t: Script) -> None:
    t.stream("S", ["s"], max_msg_size=5)
    t.publish("s", b"1")
    t.publish("s", b"1", {"Nats-Msg-Id": "a"})
    t.publish("s", b"1", {"Nats-Msg-Id": "a"})
    t.publish("s", b"123456")
    t.publish("s", b"1", {"Nats-Expected-Last-Sequence": "9"})


@configured(DOMAIN)
def advisories_name_it(t: Script) -> None:
    wire = t.connect()
    sid = wire.subscribe("$JS.EVENT.>")
    wire.ping()
    t.setup("STREAM.CREATE.S", {"name": "S", "storage": "memory"})
    t.consumer("S", "c")
    seen: list[Any] = []
    for _ in range(4):  # two requests, two creations
        frame = wire.delivered(sid)
        event = frame.json()
        seen.append((frame.subject, event.get("domain"), event.get("action"), event.get("subject")))
    t.note("advisories", sorted(seen, key=str))
