"""Scenarios of consumer requests other than creation: bodies, headers, subjects, and refusals by limits.

See docs/internals/api.md and docs/internals/consumers.md.
"""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.harness import Script, configured, scenario, table
from tests.wire import Headers, WireTimeout

MS = 1_000_000
SECOND = 1000 * MS
LONG_AGO, LONG_AFTER = "2024-01-02T03:04:05Z", "2090-01-01T00:00:00Z"
QUIET_S = 0.25
"""Seconds of waiting for an answer that must not come."""

Config = dict[str, Any]

CONSUMERS: dict[str, Config] = {
    "c": {},
    "last_per": {"deliver_policy": "last_per_subject", "filter_subject": "a.*"},
    "new": {"deliver_policy": "new"},
    "last": {"deliver_policy": "last"},
    "by_seq": {"deliver_policy": "by_start_sequence", "opt_start_seq": 3},
    "by_time": {"deliver_policy": "by_start_time", "opt_start_time": LONG_AGO},
    "by_later_time": {"deliver_policy": "by_start_time", "opt_start_time": LONG_AFTER},
    "unacked": {"ack_policy": "none"},
    "push": {"deliver_subject": "to.me"},
}


def _stage(t: Script, *names: str) -> None:
    t.stream("S", ["a.>", "b"])
    t.fill(["a.1", "a.2", "a.1", "b", "a.3"])
    for name in names:
        t.consumer("S", name, **CONSUMERS[name])


def _ask(t: Script, subject: str, body: Any = b"", headers: Headers = None) -> Any:
    """Send a request; record the answer and its headers, or that there is none."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    shown: Any
    try:
        frame = t.wire.request(f"$JS.API.CONSUMER.{subject}", data, headers, timeout=QUIET_S)
    except WireTimeout:
        shown = "no answer"
    else:
        identity = frame.headers.get("Nats-Stream-Identity") if frame.header else None
        if identity:
            t.hide(identity, "<identity>")
        shown = {"header": frame.header.decode(), "answer": frame.json()} if frame.data else t.show(frame)
    t.note(f"{subject} {data.decode()[:80]} {headers or ''}", shown)
    return shown


# ---------------------------------------------------------------------------------------------------- bodies
PAGES = [b"", b"{}", b"x", b"5", b"[]", b"null", b'{"foo":1}']
PAGES += [b'{"offset":%b}' % each for each in (b"2", b"-1", b"100", b'"1"', b"1.5", b"null")]
PAGES += [b' {"offset":2}', b'{"offset":2} ']
PLAIN = [b"", b"{}", b"{ }", b"x", b'{"a":1}', b" ", b"null", b"[]"]
PAUSES = [b"", b"{}", b"x", b"[]", b'{"foo":1}', b'{"pause_until":"2090-01-01T00:00:00Z","foo":1}']
PAUSES += [
    b'{"pause_until":%b}' % each
    for each in (
        b'"2090-01-01T00:00:00Z"',
        b'"2090-01-01T00:00:00.123456789+02:00"',
        b'"2001-01-01T00:00:00Z"',
        b'"0001-01-01T00:00:00Z"',
        b"null",
        b"5",
        b'"x"',
    )
]
RESETS = [b"", b"{}", b"x", b"5", b" ", b"[]", b"null", b'{"foo":1}']
RESETS += [b'{"seq":%b}' % each for each in (b"0", b"1", b"2", b"3", b"5", b"6", b"100", b"-1", b'"1"')]
RESETS += [b'{"seq":18446744073709551615}', b'{"seq":18446744073709551616}']


@table([(f"{kind}_{stream}", f"{kind}.{stream}") for kind in ("NAMES", "LIST") for stream in ("S", "NONE")])
def page(t: Script, subject: str) -> None:
    _stage(t, "c", "last", "new", "push")
    for body in PAGES:
        _ask(t, subject, body)


@table([(name, name) for name in ("INFO.S.c", "INFO.S.none", "INFO.NONE.c", "DELETE.S.none", "DELETE.NONE.c")])
def plain(t: Script, subject: str) -> None:
    _stage(t, "c")
    for body in PLAIN:
        _ask(t, subject, body)


@table([(name, name) for name in ("PAUSE.S.c", "PAUSE.S.none", "PAUSE.NONE.c")])
def pause(t: Script, subject: str) -> None:
    _stage(t, "c")
    for body in PAUSES:
        _ask(t, subject, body)
        if subject == "PAUSE.S.c":
            _ask(t, "INFO.S.c")


@table([(name, name) for name in CONSUMERS])
def reset(t: Script, name: str) -> None:
    _stage(t, name)
    for body in RESETS:
        _ask(t, f"RESET.S.{name}", body)


@scenario
def reset_of_nothing(t: Script) -> None:
    _stage(t)
    _ask(t, "RESET.S.none", b'{"seq":1}')
    _ask(t, "RESET.NONE.c", b'{"seq":1}')


@table(
    [
        (f"{kind}_{name}", f"{kind}.S.{name}")
        for kind in ("LEADER.STEPDOWN", "PEER.REMOVE", "PEER.EVACUATE")
        for name in ("c", "none")
    ]
)
def without_a_cluster(t: Script, subject: str) -> None:
    _stage(t, "c")
    for body in (b"", b"{}", b"x", b'{"peer":"p"}'):
        _ask(t, subject, body)


# ---------------------------------------------------------------------------------------------------- headers
@table([(level or "empty", level) for level in ("5", "6", "0", "-1", "x", "", "99999999999999999999")])
def required_level(t: Script, level: str) -> None:
    _stage(t, "c")
    create = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    for subject, body in (
        ("CREATE.S.c", create),
        ("INFO.S.c", b""),
        ("NAMES.S", b""),
        ("LIST.S", b'{"offset":100}'),
        ("PAUSE.S.c", b""),
        ("RESET.S.c", b'{"seq":1}'),
        ("RESET.S.none", b'{"seq":1}'),
        ("UNPIN.S.c", b'{"group":"g"}'),
        ("DELETE.S.none", b""),
        ("LEADER.STEPDOWN.S.c", b""),
        ("PEER.REMOVE.S.c", b""),
    ):
        _ask(t, subject, body, {"Nats-Required-Api-Level": level})


KINDS: dict[str, Config] = {
    "direct": {"direct": True},
    "sourcing": {"sourcing": True},
    "flow_acks": {"ack_policy": "flow_control"},
    "sourcing_flow_acks": {"ack_policy": "flow_control", "sourcing": True, "durable_name": "c"},
    "plain": {},
    "durable": {"durable_name": "c"},
}


@table(list(KINDS.items()))
def stream_identity(t: Script, config: Config) -> None:
    _stage(t)
    body = {"stream_name": "S", "config": {"name": "c", "deliver_subject": "d", **config}}
    own = t.wire.request("$JS.API.CONSUMER.CREATE.S.c", json.dumps(body).encode()).headers.get("Nats-Stream-Identity")
    t.note("has one", own is not None and len(own))
    if own:
        t.hide(own, "<identity>")
    for asked in ("x", "", own or "DDDDDDDD"):
        _ask(t, "CREATE.S.c", body, {"Nats-Stream-Identity": asked})
        _ask(t, "RESET.S.c", {"seq": 1}, {"Nats-Stream-Identity": asked})
        _ask(t, "INFO.S.c", b"", {"Nats-Stream-Identity": asked})
    _ask(t, "CREATE.S.c", body)
    _ask(t, "RESET.S.c", {"seq": 2})
    for asked in ("x", "", own or "DDDDDDDD"):
        t.wire.api("CONSUMER.DELETE.S.c")
        _ask(t, "CREATE.S.c", body, {"Nats-Stream-Identity": asked})


@scenario
def stream_identities_differ(t: Script) -> None:
    found = []
    for name in ("S", "T", "S"):
        t.stream(name, [f"{name}.>"])
        body = {"stream_name": name, "config": {"name": "c", "deliver_subject": "d", "direct": True}}
        frame = t.wire.request(f"$JS.API.CONSUMER.CREATE.{name}.c", json.dumps(body).encode())
        found.append(frame.headers["Nats-Stream-Identity"])
        if name == "S":
            t.setup("STREAM.DELETE.S")
    t.note("different", len(set(found)))


# ---------------------------------------------------------------------------------------------------- subjects
@table(
    [
        (name, name)
        for name in (
            *("NAMES", "LIST", "INFO", "CREATE", "FOO", "DURABLE.CREATE", "DURABLE.CREATE.S", "DURABLE.FOO.S.c"),
            *("INFO.S", "DELETE.S", "PAUSE.S", "RESET.S", "UNPIN.S", "FOO.S", "FOO.S.c", "INFO.S.c.d", "DELETE.S.c.d"),
            *(
                "PAUSE.S.c.d",
                "RESET.S.c.d",
                "UNPIN.S.c.d",
                "NAMES.S.c",
                "LIST.S.c",
                "MSG.NEXT.S.none",
                "LEADER.FOO.S.c",
            ),
        )
    ]
)
def wrong_subject(t: Script, subject: str) -> None:
    _stage(t, "c")
    _ask(t, subject)


# ---------------------------------------------------------------------------------------------------- direct ones
@scenario
def direct_consumers_are_not_listed(t: Script) -> None:
    t.stream("S", ["a.>"], max_consumers=1)
    t.fill(["a.1"])
    t.consumer("S", "c")
    for name in ("x", "y"):
        config = {"name": name, "deliver_subject": "d", "direct": True}
        t.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})
    t.api("CONSUMER.NAMES.S")
    t.api("CONSUMER.LIST.S")
    t.api("CONSUMER.INFO.S.x")
    t.state("S")
    t.api("CONSUMER.CREATE.S.z", {"stream_name": "S", "config": {"name": "z"}})
    t.api("CONSUMER.DELETE.S.x")


@table([("direct", {"direct": True, "name": "x"}), ("sourcing", {"sourcing": True, "name": "x"})])
def inner_consumers_on_a_workqueue(t: Script, config: Config) -> None:
    t.stream("S", ["a.>"], retention="workqueue")
    t.fill(["a.1"])
    t.consumer("S", "c")
    t.api("CONSUMER.CREATE.S.x", {"stream_name": "S", "config": {"deliver_subject": "d", **config}})
    t.api("CONSUMER.NAMES.S")


# ---------------------------------------------------------------------------------------------------- names
@table([(f"{storage}_{length}", storage, length) for storage in ("memory", "file") for length in (254, 255, 256)])
def long_names(t: Script, storage: str, length: int) -> None:
    t.stream("S", ["a.>"], storage=storage)
    name = "n" * length
    for config in ({"name": name}, {"name": name, "mem_storage": True}, {"durable_name": name}):
        answer = t.wire.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})
        t.note(f"{list(config)}", answer.get("error", "created"))
        t.wire.api(f"CONSUMER.DELETE.S.{name}")


@table([(name, name) for name in ("a b", "é", "a%20b", "*", ">", "a*b", "a>b", "-", "a/b", "a\\b", ".")])
def names(t: Script, name: str) -> None:
    t.stream("S", ["a.>"])
    for config in ({"durable_name": name}, {"name": name}):
        for prefix in ("CREATE.S", f"CREATE.S.{name}", f"DURABLE.CREATE.S.{name}"):
            if " " not in prefix and not (prefix == "CREATE.S" and "name" in config):
                _ask(t, prefix, {"stream_name": "S", "config": config})
            for made in t.wire.api("CONSUMER.NAMES.S")["consumers"] or []:
                t.wire.api(f"CONSUMER.DELETE.S.{made}")


# ---------------------------------------------------------------------------------------------------- work-queues
@table([(retention, retention) for retention in ("limits", "interest", "workqueue")])
def filters_change(t: Script, retention: str) -> None:
    t.stream("S", ["a.>"], retention=retention)
    for n in range(3):
        t.consumer("S", f"m{n}", filter_subject=f"a.{n}")
    for name, subject in (("m0", "a.1"), ("m0", "a.>"), ("m1", "a.9"), ("m0", "a.0"), ("m0", "")):
        config = {"durable_name": name, "ack_policy": "explicit", "filter_subject": subject}
        t.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})


# ---------------------------------------------------------------------------------------------------- limits
STREAMS: dict[str, Config] = {
    "plain": {},
    "workqueue": {"retention": "workqueue"},
    "interest": {"retention": "interest"},
    "two": {"max_consumers": 2},
    "limits": {"consumer_limits": {"inactive_threshold": 10 * SECOND, "max_ack_pending": 50}},
    "unlimited": {"consumer_limits": {"max_ack_pending": -1}},
    "file": {"storage": "file"},
}
ACKED: Config = {"ack_policy": "explicit"}
WANTED: list[Config] = [
    {},
    ACKED,
    {"ack_policy": "all"},
    *({**ACKED, "max_ack_pending": most} for most in (10, 50, 51, 100, 101, 5000, -1)),
    *({**ACKED, "inactive_threshold": seconds * SECOND} for seconds in (5, 10, 11)),
    {"durable_name": "c", **ACKED},
    {"durable_name": "c", **ACKED, "inactive_threshold": 0},
    {**ACKED, "deliver_subject": "d"},
    {"deliver_subject": "d"},
    {**ACKED, "num_replicas": 1},
    {**ACKED, "deliver_policy": "new"},
    {**ACKED, "deliver_policy": "last"},
    {**ACKED, "filter_subject": "zz"},
    {**ACKED, "filter_subject": "a.1"},
    {**ACKED, "mem_storage": True},
    {"deliver_subject": "d", "direct": True},
    {"deliver_subject": "d", "ack_policy": "flow_control"},
    *({**ACKED, "max_batch": most} for most in (0, 99, 100, 101)),
]


def _limited(t: Script, stream: Config) -> None:
    t.stream("S", ["a.>"], **stream)
    t.fill(["a.1", "a.2"])
    for wanted in WANTED:
        for pedantic in (False, True):
            config = wanted if "durable_name" in wanted else {"name": "c", **wanted}
            body = {"stream_name": "S", "config": config, "pedantic": pedantic}
            t.note(f"{wanted} {pedantic}", t.wire.api("CONSUMER.CREATE.S.c", body))
            t.wire.api("CONSUMER.DELETE.S.c")
    for n in range(4):
        config = {"durable_name": f"m{n}", **ACKED, "filter_subject": f"a.{n}"}
        t.api(f"CONSUMER.CREATE.S.m{n}", {"stream_name": "S", "config": config})


@table(list(STREAMS.items()))
def on_streams(t: Script, stream: Config) -> None:
    _limited(t, stream)


LIMITS = "jetstream { limits { max_ack_pending: 100, max_request_batch: 100 } }\n"


@configured(LIMITS)
def under_limits_of_the_server(t: Script) -> None:
    for stream in STREAMS.values():
        _limited(t, stream)
        t.setup("STREAM.DELETE.S")
