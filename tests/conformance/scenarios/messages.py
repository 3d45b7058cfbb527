"""Scenarios of reading single messages and ranges: MSG.GET and DIRECT.GET in all forms (docs/internals/api.md)."""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, scenario, table

LONG_AGO = "2001-01-01T00:00:00Z"
FAR_AWAY = "2099-01-01T00:00:00Z"
SUBJECTS = ["a.1", "a.2", "a.1", "b.1", "a.3", "a.2", "b.2", "a.1"]


def _fill(t: Script, **config: Any) -> None:
    t.stream("S", ["a.*", "b.*"], allow_direct=True, **config)
    t.fill(SUBJECTS[:6])
    t.fill(SUBJECTS[6:7], b"with headers", {"A": "b", "Nats-Msg-Id": "x"})
    t.fill(SUBJECTS[7:], b"last")
    t.setup("STREAM.MSG.DELETE.S", {"seq": 3})


GET_BODIES: list[tuple[str, Any]] = [
    ("seq", {"seq": 2}),
    ("seq_with_headers", {"seq": 7}),
    ("seq_no_headers_wanted", {"seq": 7, "no_hdr": True}),
    ("seq_deleted", {"seq": 3}),
    ("seq_beyond", {"seq": 99}),
    ("seq_zero", {"seq": 0}),
    ("seq_negative", {"seq": -1}),
    ("seq_text", {"seq": "1"}),
    ("last", {"last_by_subj": "a.1"}),
    ("last_wildcard", {"last_by_subj": "a.*"}),
    ("last_everything", {"last_by_subj": ">"}),
    ("last_absent", {"last_by_subj": "a.9"}),
    ("last_foreign", {"last_by_subj": "z"}),
    ("last_bad_subject", {"last_by_subj": "a..1"}),
    ("last_with_a_blank", {"last_by_subj": "a.1 a.2"}),
    ("next_with_a_blank", {"next_by_subj": "a.1 a.2"}),
    ("next_from_1", {"next_by_subj": "a.2", "seq": 1}),
    ("next_from_its_own", {"next_by_subj": "a.2", "seq": 2}),
    ("next_after", {"next_by_subj": "a.2", "seq": 3}),
    ("next_without_seq", {"next_by_subj": "a.2"}),
    ("next_wildcard", {"next_by_subj": "b.*", "seq": 5}),
    ("next_everything", {"next_by_subj": ">", "seq": 3}),
    ("next_none_left", {"next_by_subj": "a.3", "seq": 6}),
    ("next_beyond", {"next_by_subj": "a.1", "seq": 99}),
    ("next_absent", {"next_by_subj": "c.1", "seq": 1}),
    ("next_from_a_time", {"next_by_subj": "b.*", "start_time": LONG_AGO}),
    ("time_long_ago", {"start_time": LONG_AGO}),
    ("time_far_away", {"start_time": FAR_AWAY}),
    ("time_bad", {"start_time": "noon"}),
    ("seq_and_last", {"seq": 1, "last_by_subj": "a.1"}),
    ("last_and_next", {"last_by_subj": "a.1", "next_by_subj": "a.1"}),
    ("seq_and_time", {"seq": 1, "start_time": LONG_AGO}),
    ("empty", None),
    ("empty_object", {}),
    ("no_json", b"x"),
    ("unknown_field", {"seq": 1, "colour": 1}),
]


@table([*GET_BODIES, ("batch", {"seq": 1, "batch": 2}), ("max_bytes", {"seq": 1, "max_bytes": 2})])
def get(t: Script, body: Any) -> None:
    _fill(t)
    t.api("STREAM.MSG.GET.S", body)


@table(GET_BODIES)
def direct_get(t: Script, body: Any) -> None:
    _fill(t, storage="file")
    t.direct("S", body)


# Each row: a subject after `DIRECT.GET.S.`, and a body.
@table(
    [
        ("literal", "a.1", None),
        ("literal_with_headers", "b.2", None),
        ("literal_no_headers_wanted", "b.2", {"no_hdr": True}),
        ("absent", "a.9", None),
        ("foreign", "z", None),
        ("wildcard", "a.*", None),
        ("everything", ">", None),
        ("body_empty_object", "a.1", {}),
        ("body_no_json", "a.1", b"x"),
        ("body_with_seq", "a.1", {"seq": 1}),
    ]
)
def direct_get_last(t: Script, subject: str, body: Any) -> None:
    _fill(t)
    t.direct(f"S.{subject}", body)


@scenario
def gets_by_filters_that_are_subjects_too(t: Script) -> None:
    """A message may be published to `a.>` or `a.*`; a request for that means all matching subjects."""
    t.stream("S", ["a.>"], allow_direct=True)
    t.fill(["a.>", "a.*", "a.1", "a.b.>", "a.b.c"])
    for subject in ("a.>", "a.*", "a.b.>", "a.1"):
        t.api("STREAM.MSG.GET.S", {"last_by_subj": subject})
        t.api("STREAM.MSG.GET.S", {"next_by_subj": subject, "seq": 2})
        t.direct("S", {"last_by_subj": subject})
        t.direct(f"S.{subject}", None)


@scenario
def direct_get_needs_the_flag(t: Script) -> None:
    t.stream("S", ["a"])
    t.fill(["a"])
    t.direct("S", {"seq": 1})
    t.direct("S.a", None)
    t.direct("NONE", {"seq": 1})
    t.setup("STREAM.UPDATE.S", {"name": "S", "subjects": ["a"], "storage": "memory", "allow_direct": True})
    t.direct("S", {"seq": 1})
    t.direct("S.a", None)
    t.setup("STREAM.UPDATE.S", {"name": "S", "subjects": ["a"], "storage": "memory", "allow_direct": False})
    t.direct("S", {"seq": 1})


@scenario
def direct_get_from_an_empty_stream(t: Script) -> None:
    t.stream("S", ["a"], allow_direct=True)
    for body in ({"seq": 1}, {"last_by_subj": "a"}, {"next_by_subj": "a"}, {"start_time": LONG_AGO}):
        t.direct("S", body)
    t.direct("S", {"seq": 1, "batch": 5})
    t.direct("S", {"multi_last": ["a"]})
    t.direct("S.a", None)


@scenario
def direct_get_follows_changes(t: Script) -> None:
    t.stream("S", ["a"], allow_direct=True, max_msgs_per_subject=2)
    for n in range(4):
        t.publish("a", str(n).encode())
        t.direct("S.a", None)
    t.setup("STREAM.MSG.DELETE.S", {"seq": 4})
    t.direct("S.a", None)
    t.setup("STREAM.PURGE.S")
    t.direct("S.a", None)
    t.publish("a", b"again")
    t.direct("S.a", None)


# Each row: the body of a direct get whose answers end with a status.
@table(
    [
        ("three", {"seq": 1, "batch": 3}),
        ("all", {"seq": 1, "batch": 100}),
        ("exactly_all", {"seq": 1, "batch": 7}),
        ("one", {"seq": 1, "batch": 1}),
        ("from_the_middle", {"seq": 4, "batch": 3}),
        ("from_a_hole", {"seq": 3, "batch": 2}),
        ("from_the_last", {"seq": 8, "batch": 5}),
        ("beyond", {"seq": 9, "batch": 5}),
        ("without_seq", {"batch": 2}),
        ("zero_seq", {"seq": 0, "batch": 2}),
        ("filtered", {"seq": 1, "batch": 10, "next_by_subj": "a.1"}),
        ("filtered_wildcard", {"seq": 2, "batch": 3, "next_by_subj": "a.*"}),
        ("filtered_nothing", {"seq": 1, "batch": 3, "next_by_subj": "c.*"}),
        ("filtered_without_seq", {"batch": 3, "next_by_subj": "b.*"}),
        ("from_a_time", {"start_time": LONG_AGO, "batch": 3}),
        ("from_a_time_beyond", {"start_time": FAR_AWAY, "batch": 3}),
        ("from_a_time_filtered", {"start_time": LONG_AGO, "batch": 3, "next_by_subj": "b.>"}),
        ("max_bytes", {"seq": 1, "batch": 10, "max_bytes": 40}),
        ("max_bytes_small", {"seq": 1, "batch": 10, "max_bytes": 1}),
        ("no_headers_wanted", {"seq": 6, "batch": 2, "no_hdr": True}),
        ("with_last", {"last_by_subj": "a.1", "batch": 2}),
        ("negative", {"seq": 1, "batch": -1}),
        ("seq_and_time", {"seq": 1, "start_time": LONG_AGO, "batch": 2}),
        ("multi", {"multi_last": ["a.1", "b.1"]}),
        ("multi_wildcard", {"multi_last": ["a.*"]}),
        ("multi_everything", {"multi_last": [">"]}),
        ("multi_overlapping", {"multi_last": ["a.*", "a.1", ">"]}),
        ("multi_absent", {"multi_last": ["c.1"]}),
        ("multi_some_absent", {"multi_last": ["c.1", "b.2", "a.9"]}),
        ("multi_empty_list", {"multi_last": []}),
        ("multi_up_to_seq", {"multi_last": ["a.*"], "up_to_seq": 4}),
        ("multi_up_to_seq_deleted", {"multi_last": ["a.1"], "up_to_seq": 3}),
        ("multi_up_to_seq_beyond", {"multi_last": ["a.*", "b.*"], "up_to_seq": 99}),
        ("multi_up_to_seq_first", {"multi_last": ["a.*"], "up_to_seq": 1}),
        ("multi_up_to_seq_zero", {"multi_last": ["a.*"], "up_to_seq": 0}),
        ("multi_up_to_time_far", {"multi_last": ["b.*"], "up_to_time": FAR_AWAY}),
        ("multi_up_to_time_long_ago", {"multi_last": ["b.*"], "up_to_time": LONG_AGO}),
        ("multi_up_to_both", {"multi_last": ["b.*"], "up_to_seq": 3, "up_to_time": FAR_AWAY}),
        ("multi_batch", {"multi_last": [">"], "batch": 2}),
        ("multi_max_bytes", {"multi_last": [">"], "max_bytes": 30}),
        ("multi_no_headers_wanted", {"multi_last": ["b.*"], "no_hdr": True}),
        ("multi_and_seq", {"multi_last": ["a.1"], "seq": 1}),
        ("multi_and_last", {"multi_last": ["a.1"], "last_by_subj": "a.1"}),
        ("up_to_seq_alone", {"up_to_seq": 3}),
        ("batch_and_up_to_seq", {"seq": 1, "batch": 3, "up_to_seq": 3}),
    ]
)
def direct_batch(t: Script, body: Any) -> None:
    _fill(t, storage="file")
    t.direct("S", body, count=0)


@scenario
def direct_batch_pages_through(t: Script) -> None:
    t.stream("S", ["a.*"], allow_direct=True, storage="file")
    t.fill([f"a.{n % 5}" for n in range(50)])
    t.setup("STREAM.PURGE.S", {"filter": "a.3"})
    seq, seen = 1, []
    while True:
        frames = t.direct("S", {"seq": seq, "batch": 7}, count=0)
        seen += [int(frame.headers["Nats-Sequence"]) for frame in frames[:-1]]
        if frames[-1].headers.get("Nats-Num-Pending", "0") == "0":
            break
        seq = seen[-1] + 1
    t.note("sequences", seen)


@scenario
def direct_multi_too_many(t: Script) -> None:
    t.stream("S", ["a.*"], allow_direct=True)
    t.fill([f"a.{n}" for n in range(1025)], b"")
    t.direct("S", {"multi_last": ["a.*"]})
    t.setup("STREAM.MSG.DELETE.S", {"seq": 1})
    frames = t.wire.request("$JS.API.DIRECT.GET.S", b'{"multi_last":["a.*"]}')
    t.frames("1024 are fine", [frames])


@scenario
def direct_get_at_a_time_between(t: Script) -> None:
    t.stream("S", ["a.*"], allow_direct=True)
    t.fill(["a.1", "a.2", "a.1"])
    between = t.wire.api("STREAM.MSG.GET.S", {"seq": 3})["message"]["time"]
    t.fill(["a.2", "a.1"])
    body = {"start_time": between}
    t.hide(between, "<time of 3>")
    t.direct("S", body)
    t.direct("S", {**body, "batch": 5}, count=0)
    t.direct("S", {"multi_last": ["a.*"], "up_to_time": between}, count=0)
    t.api("STREAM.MSG.GET.S", {**body, "next_by_subj": "a.2"})


@scenario
def direct_get_is_shared_by_connections(t: Script) -> None:
    _fill(t)
    for _ in range(3):
        with_headers, without = t.connect(), t.connect(headers=False, no_responders=False)
        t.frames("headers", [with_headers.request("$JS.API.DIRECT.GET.S", b'{"seq":7}')])
        t.frames("no headers", [without.request("$JS.API.DIRECT.GET.S", b'{"seq":7}')])


@scenario
def get_after_everything_was_removed(t: Script) -> None:
    _fill(t)
    t.setup("STREAM.PURGE.S")
    t.api("STREAM.MSG.GET.S", {"seq": 8})
    t.api("STREAM.MSG.GET.S", {"last_by_subj": "a.1"})
    t.api("STREAM.MSG.GET.NONE", {"seq": 8})
    t.direct("S", {"seq": 8})
    t.direct("S.a.1", None)
