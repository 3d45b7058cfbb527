"""Scenarios of valid direct gets, and of the statuses of invalid ones (docs/internals/api.md#direct-get)."""

from __future__ import annotations

import itertools
from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.wire import WireTimeout

LONG_AGO = "2001-01-01T00:00:00Z"
FAR_AWAY = "2099-01-01T00:00:00Z"
FILL = ["a.1", "a.2", "b.1", "a.1", "b.2", "a.3"]
FIELDS: dict[str, Any] = {
    "seq": 2,
    "last_by_subj": "a.1",
    "next_by_subj": "a.*",
    "start_time": LONG_AGO,
    "batch": 2,
    "max_bytes": 1000,
    "multi_last": ["a.*"],
    "up_to_seq": 4,
    "up_to_time": FAR_AWAY,
    "no_hdr": True,
}


def _stage(t: Script) -> None:
    t.stream("S", ["a.*", "b.*"], allow_direct=True)
    t.fill(FILL)


def _ask(t: Script, body: Any, subject: str = "S") -> None:
    """Record all answers: up to a status, or a single message."""
    plain = isinstance(body, dict)
    several = plain and ((body.get("batch") and not body.get("last_by_subj")) or body.get("multi_last"))
    frames = t.direct(subject, body, 0 if several and subject == "S" else 1)
    if not several and frames[0].headers.get("Nats-Num-Pending") and not frames[0].status:
        t.note("more came", True)


def _pairs() -> list[tuple[str, dict[str, Any]]]:
    return [
        ("-".join(names), {name: FIELDS[name] for name in names}) for names in itertools.combinations(sorted(FIELDS), 2)
    ]


@table(_pairs())
def two_fields(t: Script, body: Any) -> None:
    """Each pair of fields gives the same result: accepted, refused, or one field ignored."""
    _stage(t)
    _ask(t, body)


@table([(f"without-{name}", {key: FIELDS[key] for key in FIELDS if key != name}) for name in sorted(FIELDS)])
def all_but_one(t: Script, body: Any) -> None:
    _stage(t)
    t.direct("S", body)


@table(
    [
        ("null_fields", dict.fromkeys(FIELDS) | {"seq": 2}),
        ("null_fields_only", dict.fromkeys(FIELDS)),
        ("null_list", {"multi_last": None}),
        ("null_in_the_list", {"multi_last": [None, "a.1"]}),
        ("list_of_numbers", {"multi_last": [1]}),
        ("list_is_text", {"multi_last": "a.1"}),
        ("seq_fraction", b'{"seq":2.0}'),
        ("seq_exponent", b'{"seq":2e0}'),
        ("seq_max", {"seq": 2**64 - 1}),
        ("seq_too_large", {"seq": 2**64}),
        ("seq_much_too_large", {"seq": 2**200}),
        ("seq_negative", {"seq": -1}),
        ("seq_true", {"seq": True}),
        ("up_to_seq_too_large", {"multi_last": [">"], "up_to_seq": 2**64}),
        ("up_to_seq_negative", {"multi_last": [">"], "up_to_seq": -1}),
        ("batch_too_large", {"seq": 1, "batch": 2**63}),
        ("batch_text", {"seq": 1, "batch": "2"}),
        ("batch_fraction", {"seq": 1, "batch": 1.5}),
        ("max_bytes_too_large", {"seq": 1, "batch": 1, "max_bytes": 2**63}),
        ("no_hdr_text", {"seq": 1, "no_hdr": "true"}),
        ("last_number", {"last_by_subj": 1}),
        ("time_number", {"start_time": 1}),
        ("time_empty", {"start_time": ""}),
        ("time_without_zone", {"start_time": "2001-01-01T00:00:00"}),
        ("time_month_13", {"start_time": "2001-13-01T00:00:00Z"}),
        ("up_to_time_bad", {"multi_last": ["a.1"], "up_to_time": "soon"}),
        ("up_to_time_bad_and_unused", {"seq": 1, "up_to_time": "soon"}),
        ("upper_case", {"SEQ": 2, "No_Hdr": True}),
        ("twice", b'{"seq":1,"seq":3}'),
        ("two_objects", b'{"seq":1} {"seq":3}'),
        ("blanks_around", b' \n {"seq":1}\t'),
        ("comma_too_many", b'{"seq":1,}'),
        ("cut_off", b'{"seq":1'),
        ("array", b"[1]"),
        ("number", b"1"),
        ("text", b'"seq"'),
        ("null", b"null"),
        ("blank", b" "),
        ("not_utf8", b'{"last_by_subj":"a.\xff"}'),
        ("escaped", b'{"last_by_subj":"\\u0061.1"}'),
        ("nul", b'{"seq":1}\x00'),
        ("deep", b'{"x":' + b"[" * 50 + b"]" * 50 + b',"seq":1}'),
        ("empty_names", {"last_by_subj": "", "next_by_subj": "", "seq": 3}),
    ]
)
def json(t: Script, body: Any) -> None:
    _stage(t)
    t.direct("S", body)


@table([(name, subject) for name, subject in (("plain", "S"), ("by_subject", "S.a.1"))])
def api_level(t: Script, subject: str) -> None:
    _stage(t)
    body = b'{"seq":2}' if subject == "S" else b""
    for level in ("0", "4", "5", "6", "99999999999999999999", "-1", "x", "", " 4"):
        frame = t.wire.request(f"$JS.API.DIRECT.GET.{subject}", body, {"Nats-Required-Api-Level": level})
        t.frames(f"level {level!r}", [frame])
    t.frames("another header", [t.wire.request(f"$JS.API.DIRECT.GET.{subject}", body, {"A": "b"})])


BY_SUBJECT_BODIES: list[tuple[str, Any]] = [
    *((name, {name: value}) for name, value in sorted(FIELDS.items())),
    ("no_hdr_false", {"no_hdr": False}),
    ("nothing_set", {"seq": 0, "batch": 0, "last_by_subj": "", "multi_last": []}),
    ("unknown", {"colour": "blue"}),
    ("null", b"null"),
    ("blank", b" "),
    ("array", b"[]"),
    ("seq_too_large", {"seq": 2**64}),
]


@table(BY_SUBJECT_BODIES)
def by_subject_with(t: Script, body: Any) -> None:
    """The form `….S.<subject>` accepts `no_hdr` and no field that selects a message."""
    _stage(t)
    t.direct("S.a.1", body)


@table(
    [
        ("literal", "a.1"),
        ("star", "a.*"),
        ("star_first", "*.1"),
        ("stars", "*.*"),
        ("star_too_short", "*"),
        ("rest", "a.>"),
        ("everything", ">"),
        ("absent", "a.9"),
        ("not_the_streams", "z.9"),
        ("longer", "a.1.x"),
        ("prefix", "a"),
        ("rest_of_a_message", "a.1.>"),
    ]
)
def by_subject(t: Script, subject: str) -> None:
    _stage(t)
    t.direct(f"S.{subject}", None)
    t.setup("STREAM.MSG.DELETE.S", {"seq": 4})
    t.direct(f"S.{subject}", None)
    t.direct("S", {"last_by_subj": subject})
    t.direct("S", {"next_by_subj": subject})


@scenario
def the_newest_of_all_after_it_was_deleted(t: Script) -> None:
    """nats-server finds no message (differences.py)."""
    _stage(t)
    t.setup("STREAM.MSG.DELETE.S", {"seq": 6})
    t.note("the last of >", t.show(t.wire.request("$JS.API.DIRECT.GET.S", b'{"last_by_subj":">"}')))
    t.note("the last of >, by subject", t.show(t.wire.request("$JS.API.DIRECT.GET.S.>", b"")))
    t.direct("S", {"last_by_subj": "*.*"})
    t.direct("S", {"multi_last": [">"]}, 0)


@scenario
def nobody_serves_what_is_not_there(t: Script) -> None:
    t.stream("S", ["a"], allow_direct=True)
    t.stream("N", ["b"])
    t.fill(["a", "b"])
    for name in ("NONE", "N", "S2", "s"):
        t.direct(name, {"seq": 1})
        t.direct(f"{name}.a", None)
    t.setup("STREAM.DELETE.S")
    t.direct("S", {"seq": 1})
    t.direct("S.a", None)
    t.stream("S", ["a"], allow_direct=True)
    t.direct("S", {"seq": 1})
    t.direct("S.a", None)


@scenario
def a_request_without_a_reply_disturbs_nobody(t: Script) -> None:
    _stage(t)
    for subject, body in (("S", b'{"seq":1}'), ("S", b"x"), ("S.a.1", b""), ("S", b'{"multi_last":[">"]}')):
        t.wire.publish(f"$JS.API.DIRECT.GET.{subject}", body)
    t.frames("nothing comes", t.wire.ping())
    t.direct("S", {"seq": 1})


@scenario
def answers_go_to_any_reply_subject(t: Script) -> None:
    _stage(t)
    sid = t.wire.subscribe("answers.>")
    t.wire.publish("$JS.API.DIRECT.GET.S.a.1", b"", "answers.one")
    t.wire.publish("$JS.API.DIRECT.GET.S", b'{"seq":1,"batch":2}', "answers.two")
    t.frames("answers", sorted(t.collect(t.wire, 4, sid=sid), key=lambda frame: (frame.subject, frame.header)))


@scenario
def a_stream_does_not_store_what_it_answers(t: Script) -> None:
    """If the reply subject is one of the stream's own, the stream stores the answer as any other message."""
    t.stream("S", ["a.*"], allow_direct=True)
    t.fill(["a.1"])
    heard = t.wire.subscribe("a.2")
    t.wire.publish("$JS.API.DIRECT.GET.S.a.1", b"", "a.2")
    t.frames("heard", t.collect(t.wire, 1, sid=heard))
    # Its length depends on the trailing zeros of its time.
    t.when("S", lambda state: state["messages"] == 2)
    t.direct("S", {"seq": 2})


@scenario
def who_gets_no_headers(t: Script) -> None:
    _stage(t)
    plain = t.connect(headers=False, no_responders=False)
    for subject, body in (("S", b'{"seq":1}'), ("S.a.1", b""), ("S", b'{"seq":99}'), ("NONE", b'{"seq":1}')):
        try:
            t.frames(f"{subject} {body!r}", [plain.request(f"$JS.API.DIRECT.GET.{subject}", body, timeout=0.5)])
        except WireTimeout:
            t.note(f"{subject} {body!r}", "no answer")


@scenario
def many_at_once_on_one_connection(t: Script) -> None:
    """Concurrent direct gets on one connection are answered independently."""
    t.stream("S", ["a.*"], allow_direct=True)
    t.fill([f"a.{n}" for n in range(200)])
    sid = t.wire.subscribe("many.*")
    for n in range(200):
        t.wire.publish(f"$JS.API.DIRECT.GET.S.a.{n}", b"", f"many.{n}")
        t.wire.publish("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % (n + 1), f"many.{n + 200}")
    got = {frame.subject: (frame.headers.get("Nats-Sequence"), frame.data) for frame in t.collect(t.wire, 400, sid=sid)}
    t.note("answers", sorted(got.items()))
