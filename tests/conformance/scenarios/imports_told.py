"""Scenarios of latency metrics and traces of messages and requests between accounts."""

from __future__ import annotations

import time
from typing import Any

from tests.conformance.harness import Script, table
from tests.conformance.scenarios.imports import IMPORTS, came, listener, serve, turn
from tests.wire import Wire

# ---- latency


def _told(t: Script, watcher: Wire) -> None:
    """Record the exporter's latency metric without measured values."""
    frames = [*watcher.ping(), *watcher.ping()]
    deadline = time.monotonic() + 0.2
    while not frames and time.monotonic() < deadline:
        frames += watcher.ping()
    for frame in frames:
        event = frame.json()
        event |= {"service": "<short>", "system": "<short>", "total": event["total"] > 0}
        for who in ("requestor", "responder"):
            if who in event:
                event[who].pop("rtt", None)
                if "id" in event[who]:
                    event[who]["id"] = "<id>"
        event["id"] = len(event["id"])
        t.note(frame.subject, [list(event), event])


@table(
    [
        (f"{subject} {end}", subject, end)
        for subject in ("timed", "timed.shared", "timed.quick")
        for end in ("answered", "twice", "nobody", "without reply", "requester gone", "late")
        if end != "late" or subject == "timed.quick"
    ],
    IMPORTS,
)
def a_measured_request(t: Script, subject: str, end: str) -> None:
    watcher = listener(t, "e", "timing")
    client = t.connect(user="i", name="asks", lang="none", version="7")
    sid = client.subscribe("here")
    server = t.connect(user="e", name="serves", lang="any", version="1")
    if end != "nobody":
        server.subscribe(subject)
    turn(server)
    client.publish(subject, b"q", "" if end == "without reply" else "here")
    turn(client)
    asked = server.ping()
    if end == "requester gone":
        client.unsubscribe(sid)
        turn(client)
    elif end == "late":
        time.sleep(1)  # after twice the threshold, when nats-server has checked
    for frame in asked * (2 if end == "twice" else 1):
        if frame.reply:
            server.publish(frame.reply, b"a")
            turn(server)
    _told(t, watcher)
    came(t, "answered", client)


_SPAN, _TRACE = "b7ad6b7169203331", "0af7651916cd43dd8448eb211c80319c"


@table(
    [
        (f"{number}", headers)
        for number, headers in enumerate(
            (
                None,
                {"A": "1"},
                {"Traceparent": f"00-{_TRACE}-{_SPAN}-01", "Tracestate": "k=v"},
                {"Traceparent": f"00-{_TRACE}-{_SPAN}-00"},
                {"Traceparent": f"00-{_TRACE}-{_SPAN}"},
                {"X-B3-Sampled": "1"},
                {"X-B3-Sampled": "0", "X-B3-TraceId": _TRACE},
                {"X-B3-TraceId": _TRACE, "X-B3-SpanId": _SPAN, "X-B3-ParentSpanId": _SPAN},
                {"X-B3-SpanId": _SPAN},
                {"B3": f"{_TRACE}-{_SPAN}-1-{_SPAN}"},
                {"B3": f"{_TRACE}-{_SPAN}-0"},
                {"B3": f"{_TRACE}-{_SPAN}"},
                {"B3": "0"},
                {"B3": "1"},
                {"Uber-Trace-Id": f"{_TRACE}:{_SPAN}:0:1", "Uberctx-Own": "x"},
                {"Uber-Trace-Id": f"{_TRACE}:{_SPAN}:0:01"},
                {"Uber-Trace-Id": f"{_TRACE}:{_SPAN}:0:2"},
                {"Uber-Trace-Id": f"{_TRACE}:{_SPAN}:0:f"},
                {"Uber-Trace-Id": f"{_TRACE}:{_SPAN}:0:001"},
                {"Uber-Trace-Id": f"{_TRACE}:{_SPAN}:0:2", "X-B3-Sampled": "1"},
                {"X-B3-Sampled": "2", "Traceparent": f"00-{_TRACE}-{_SPAN}-01"},
                {"X-B3-Sampled": "0", "Traceparent": f"00-{_TRACE}-{_SPAN}-01"},
                {"B3": f"{_TRACE}-{_SPAN}-d", "Traceparent": f"00-{_TRACE}-{_SPAN}-01"},
            )
        )
    ],
    IMPORTS,
)
def which_requests_are_measured(t: Script, headers: Any) -> None:
    watcher, server = listener(t, "e", "timing"), serve(t, "timed.chosen")
    client = t.connect(user="i")
    client.publish("timed.chosen", b"q", client.new_reply(), headers)
    turn(client)
    for frame in server.ping():
        server.publish(frame.reply, b"a")
    turn(server)
    _told(t, watcher)
    came(t, "answered", client)


# ---- traces


@table(
    [
        (f"{user} {subject} {how}", user, subject, only, listens)
        for user, subject in (
            ("e", "ev.a.b"),
            ("e", "tr.1"),
            ("i", "one"),
            ("i", "got.a.b"),
            ("i", "seen"),
            ("i", "stored"),
            ("i", "stored.seen"),
            ("i", "far.INFO"),
            ("l", "last"),
        )
        for how, only, listens in (
            ("traced", False, True),
            ("only traced", True, True),
            ("traced, nobody listens", False, False),
            ("only traced, nobody listens", True, False),
        )
    ],
    IMPORTS,
)
def a_trace_between_accounts(t: Script, user: str, subject: str, only: bool, listens: bool) -> None:
    owner, importer = t.as_user("e"), t.as_user("i")
    if subject.startswith("stored"):
        owner.stream("S", ["stored", "stored.*"])
    elif subject.startswith("tr"):
        importer.stream("T", ["tr.1"])
    watcher = listener(t, user, "trace")
    client = t.connect(user=user, name="publishes")
    others = []
    if listens:
        names = ("tr.>", "*.ev.>", "mapped.b", "seen", "one") if user == "e" else ("one", "one.>", "seen", "tr.>")
        others = [listener(t, "i" if user == "e" else "e", *names), listener(t, "e", "ev.>", "tr.*", queue="g")]
    headers = {"Nats-Trace-Dest": "trace", "A": "1"} | ({"Nats-Trace-Only": "true"} if only else {})
    client.publish(subject, b"m", client.new_reply(), headers)
    turn(client)
    came(t, "traces", watcher, 1)
    if subject != "far.INFO":
        came(t, "answered", client, int(subject.startswith("stored") and not only))
    for other in others:
        came(t, "heard", other)
