"""Scenarios of multi_last direct gets: the last message of many subjects, now and up to a sequence or a time."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from tests.conformance.harness import Script, scenario, table
from tests.wire import Frame

SUBJECTS = ["a.1", "a.2", "b.1", "a.1", "b.2", "a.3", "a.2", "b.1.x", "a.1", "a.2", "c", "b.1"]
FILTERS: list[tuple[str, list[str]]] = [
    ("one", ["a.1"]),
    ("several", ["a.1", "b.2", "c"]),
    ("any_order", ["c", "b.2", "a.1"]),
    ("same_twice", ["a.1", "a.1"]),
    ("wildcard", ["a.*"]),
    ("wildcards_overlap", ["a.*", "*.1"]),
    ("wildcard_and_its_own", ["a.1", "a.*"]),
    ("rest", ["b.>"]),
    ("everything", [">"]),
    ("everything_and_more", [">", "a.1", "b.*"]),
    ("two_tokens", ["*.*"]),
    ("one_token", ["*"]),
    ("absent", ["z"]),
    ("absent_among", ["z", "a.2", "y.*"]),
    ("empty", [""]),
    ("empty_among", ["", "a.2"]),
    ("bad_dots", ["a..1"]),
    ("bad_rest", ["a.>.b"]),
    ("bad_among", ["a.>.b", "a.2"]),
    ("blank", ["a 1"]),
]
STORAGES = ("file", "memory")


def _all(t: Script, body: Any, stream: str = "S") -> list[Frame]:
    reply = t.wire.new_reply()
    t.wire.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(body).encode(), reply)
    frames = [t.wire.message(reply)]
    while not frames[-1].status:
        frames.append(t.wire.message(reply))
    return frames


def _told(frames: list[Frame]) -> list[Any]:
    """Return subject, payload and counters of each answer; then the final status."""
    names = ("Subject", "Sequence", "Num-Pending", "Last-Sequence", "UpTo-Sequence")
    return [
        [frame.header.split(b"\r\n")[0], frame.data, *(frame.headers.get(f"Nats-{name}") for name in names)]
        for frame in frames
    ]


def _stage(t: Script, **config: Any) -> None:
    t.stream("S", ["a.*", "b.>", "c"], allow_direct=True, **config)
    t.fill(SUBJECTS)


def _time_of(t: Script, seq: int, plus_ns: int = 0) -> str:
    """Return the store time of a message, moved by `plus_ns`."""
    text = t.wire.api("STREAM.MSG.GET.S", {"seq": seq})["message"]["time"]
    whole, _, fraction = text.rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    seconds, ns = divmod(seconds * 10**9 + int(fraction.ljust(9, "0")) + plus_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def _named() -> list[tuple[str, str, list[str]]]:
    return [(f"{name}-{storage}", storage, filters) for storage in STORAGES for name, filters in FILTERS]


@table(_named())
def filters(t: Script, storage: str, filters: list[str]) -> None:
    _stage(t, storage=storage)
    t.direct("S", {"multi_last": filters}, 0)
    for up_to in (1, 4, 8, 12):
        t.note(f"up to {up_to}", _told(_all(t, {"multi_last": filters, "up_to_seq": up_to})))
    t.note("from 6", _told(_all(t, {"multi_last": filters, "seq": 6})))
    t.note("two of them", _told(_all(t, {"multi_last": filters, "batch": 2})))


@table([(storage, storage) for storage in STORAGES])
def as_of_every_sequence(t: Script, storage: str) -> None:
    """As of each sequence (before the first, existing, deleted, last, beyond) no answer is of a later message."""
    _stage(t, storage=storage)
    for seq in (2, 6, 11):
        t.setup("STREAM.MSG.DELETE.S", {"seq": seq})
    for up_to in (*range(1, 15), 100, 2**63, 2**64 - 1):
        for wanted in (["a.*"], ["a.2", "b.1"], [">"]):
            frames = _all(t, {"multi_last": wanted, "up_to_seq": up_to})
            t.note(f"{wanted} up to {up_to}", _told(frames))
            assert all(int(frame.headers["Nats-Sequence"]) <= up_to for frame in frames if not frame.status)


@table([(storage, storage) for storage in STORAGES])
def as_of_every_time(t: Script, storage: str) -> None:
    """Answers are exact to a nanosecond before, at and after the time of each message."""
    _stage(t, storage=storage)
    for seq in range(1, 13):
        for ns in (-1, 0, 1):
            at = _time_of(t, seq, ns)
            for wanted in (["a.*"], [">"]):
                frames = _all(t, {"multi_last": wanted, "up_to_time": at})
                t.note(f"{wanted} as of {seq}{ns:+d} ns", _told(frames))


@table([(storage, storage) for storage in STORAGES])
def as_of_times_of_what_is_gone(t: Script, storage: str) -> None:
    _stage(t, storage=storage)
    times = {(seq, ns): _time_of(t, seq, ns) for seq in (1, 2, 5, 6, 12) for ns in (-1, 0, 1)}
    for seq in (1, 5, 6, 12):
        t.setup("STREAM.MSG.DELETE.S", {"seq": seq})
    for (seq, ns), at in times.items():
        t.note(f"as of {seq}{ns:+d} ns", _told(_all(t, {"multi_last": [">"], "up_to_time": at})))
        t.note(f"one from {seq}{ns:+d} ns", _told(_all(t, {"start_time": at, "batch": 1})))
        t.note(f"next from {seq}{ns:+d} ns", _told(_all(t, {"start_time": at, "batch": 2, "next_by_subj": "b.>"})))


@table([(storage, storage) for storage in STORAGES])
def from_every_time(t: Script, storage: str) -> None:
    _stage(t, storage=storage)
    for seq in range(1, 13):
        for ns in (-1, 0, 1):
            at = _time_of(t, seq, ns)
            (frame,) = [t.wire.request("$JS.API.DIRECT.GET.S", json.dumps({"start_time": at}).encode())]
            t.note(f"from {seq}{ns:+d} ns", _told([frame]))
            t.note(f"run from {seq}{ns:+d} ns", _told(_all(t, {"start_time": at, "batch": 2})))
            body = {"start_time": at, "next_by_subj": "a.*"}
            t.note(
                f"next a.* from {seq}{ns:+d} ns",
                _told([t.wire.request("$JS.API.DIRECT.GET.S", json.dumps(body).encode())]),
            )
            stored = t.wire.api("STREAM.MSG.GET.S", {"start_time": at})
            t.note("MSG.GET says", stored.get("message", {}).get("seq"))


@table(
    [
        ("zero_time", "0001-01-01T00:00:00Z"),
        ("before_1970", "1969-12-31T23:59:59.999999999Z"),
        ("1970", "1970-01-01T00:00:00Z"),
        ("other_zone", "2001-01-01T01:30:00+01:30"),
        ("future_in_a_zone", "2099-01-01T00:00:00-11:00"),
        ("ten_digits", "2001-01-01T00:00:00.1234567891Z"),
        ("comma", "2001-01-01T00:00:00,5Z"),
        ("small_t", "2001-01-01t00:00:00z"),
        ("leap_second", "2016-12-31T23:59:60Z"),
    ]
)
def times(t: Script, at: str) -> None:
    for storage in STORAGES:
        name = storage.upper()
        t.stream(name, [f"{storage}.*"], allow_direct=True, storage=storage)
        t.fill([f"{storage}.{n % 2}" for n in range(4)])
        t.note(f"{storage}: up to", _told(_all(t, {"multi_last": [">"], "up_to_time": at}, name)))
        t.note(f"{storage}: from", _told(_all(t, {"start_time": at, "batch": 2}, name)))
        t.direct(name, {"start_time": at})
        t.direct(name, {"start_time": at, "next_by_subj": f"{storage}.1"})


@table([("before", "1600-01-01T00:00:00Z"), ("after", "2263-01-01T00:00:00Z"), ("end", "9999-12-31T23:59:59Z")])
def times_beyond_64_bits_of_ns(t: Script, at: str) -> None:
    """For times beyond 64 bits of ns nats-server answers as for another time (differences.py).

    The stream is unaffected.
    """
    _stage(t)
    t.note("as of a time: up to", _told(_all(t, {"multi_last": [">"], "up_to_time": at})))
    t.note("as of a time: from", _told(_all(t, {"start_time": at, "batch": 2})))
    t.note("all of it", _told(_all(t, {"multi_last": [">"]})))


@table(
    [
        ("history_one", {"max_msgs_per_subject": 1}, None),
        ("history_two", {"max_msgs_per_subject": 2}, None),
        ("limited", {"max_msgs": 5}, None),
        ("purged_by_filter", {}, ("PURGE", {"filter": "a.*"})),
        ("purged_by_seq", {}, ("PURGE", {"seq": 6})),
        ("purged", {}, ("PURGE", None)),
        ("newest_deleted", {}, ("MSG.DELETE", {"seq": 12})),
        ("erased", {"storage": "file"}, ("MSG.DELETE", {"seq": 9, "no_erase": False})),
        ("sealed", {}, ("SEAL", None)),
        ("late_first", {"first_seq": 1000}, None),
        ("work_queue", {"retention": "workqueue"}, None),
        ("transformed", {"subject_transform": {"src": "a.*", "dest": "b.{{wildcard(1)}}"}}, None),
    ]
)
def states(t: Script, config: dict[str, Any], change: tuple[str, Any] | None) -> None:
    _stage(t, **config)
    if change is not None and change[0] == "SEAL":
        seal = {"name": "S", "subjects": ["a.*", "b.>", "c"], "storage": "memory", "allow_direct": True}
        t.setup("STREAM.UPDATE.S", {**seal, "sealed": True, "deny_delete": True, "deny_purge": True})
    elif change is not None:
        t.setup(f"STREAM.{change[0]}.S", change[1])
    first = config.get("first_seq", 1)
    for wanted in (["a.*"], ["b.>", "c"], [">"], ["a.1", "a.2"]):
        t.direct("S", {"multi_last": wanted}, 0)
        for up_to in range(first, first + 12):
            t.note(f"{wanted} up to {up_to}", _told(_all(t, {"multi_last": wanted, "up_to_seq": up_to})))


@table(
    [
        ("1024", 1024, [">"]),
        ("1025", 1025, [">"]),
        ("1024_of_more", 1300, ["a.*"]),
        ("1025_in_two", 1025, ["a.*", "b.*"]),
    ]
)
def the_most_subjects(t: Script, count: int, wanted: list[str]) -> None:
    """1,024 subjects are answered and one more is refused, whatever the filters."""
    t.stream("S", ["a.*", "b.*"], allow_direct=True)
    t.fill([f"{'a' if n < 1024 else 'b'}.{n}" for n in range(count)], b"")
    for extra in ({}, {"batch": 3}, {"max_bytes": 10}, {"seq": 1020}, {"up_to_seq": 1023}, {"up_to_seq": 1024}):
        frames = _all(t, {"multi_last": wanted, **extra})
        t.note(f"{extra}: how many, and the end", [len(frames), *_told(frames[-2:])])
    t.setup("STREAM.PURGE.S", {"filter": "a.7"})
    t.note("one less", [len(_all(t, {"multi_last": wanted}))])


@scenario
def many_literals(t: Script) -> None:
    """A list of more filters than the allowed number of subjects is accepted; the limit applies to subjects found."""
    t.stream("S", ["a.*"], allow_direct=True)
    t.fill([f"a.{n}" for n in range(1100)], b"")
    for names in (1000, 1024, 1025, 1100):
        frames = _all(t, {"multi_last": [f"a.{n}" for n in range(names)]})
        t.note(f"{names}", [len(frames), *_told(frames[-1:])])
    wanted = [f"b.{n}" for n in range(2000)] + ["a.5", "a.6"]
    t.note("most absent", _told(_all(t, {"multi_last": wanted})))


def _pages(t: Script, wanted: list[str], size: int, between: Any) -> list[tuple[str, int]]:
    """Return all pages of one snapshot as clients read it: the first page gives up_to_seq for the next ones."""
    body: dict[str, Any] = {"multi_last": wanted, "batch": size}
    got: list[tuple[str, int]] = []
    while True:
        frames = _all(t, body)
        got += [(frame.headers["Nats-Subject"], int(frame.headers["Nats-Sequence"])) for frame in frames[:-1]]
        end = frames[-1].headers
        if frames[-1].status != 204 or end["Nats-Num-Pending"] == "0":
            return got
        body |= {"up_to_seq": int(end["Nats-UpTo-Sequence"]), "seq": int(end["Nats-Last-Sequence"]) + 1}
        between()


@table([("by_one", 1), ("by_seven", 7), ("by_hundreds", 400)])
def pages_are_one_snapshot(t: Script, size: int) -> None:
    """While others write new messages and new subjects, the pages together are the stream as of the first page."""
    t.stream("S", ["a.*"], allow_direct=True, storage="file")
    count = 40 if size == 1 else 100 if size == 7 else 900
    t.fill([f"a.{n}" for n in range(count)], b"old")
    writer = t.connect()

    def write() -> None:
        for n in range(0, count, 5):
            writer.publish(f"a.{n}", b"new")
        writer.request(f"a.{count + 7}", b"another")

    got = _pages(t, ["a.*"], size, write)
    t.note("as of the first page", got)
    t.note("each subject once", len({subject for subject, _ in got}) == len(got) == count)


@scenario
def pages_lose_what_is_overwritten(t: Script) -> None:
    """With one message per subject, a message overwritten between two pages is in neither."""
    t.stream("S", ["a.*"], allow_direct=True, max_msgs_per_subject=1)
    t.fill([f"a.{n}" for n in range(20)])
    turns = iter(range(20))

    def write() -> None:
        t.fill([f"a.{19 - next(turns)}"])

    t.note("pages", _pages(t, ["a.*"], 3, write))


@scenario
def roll_ups_and_markers(t: Script) -> None:
    t.stream("S", ["a.*"], allow_direct=True, allow_rollup_hdrs=True)
    t.fill(["a.1", "a.1", "a.2", "a.1"])
    t.publish("a.1", b"rolled", {"Nats-Rollup": "sub"})
    t.direct("S", {"multi_last": ["a.*"]}, 0)
    t.note("before", _told(_all(t, {"multi_last": ["a.*"], "up_to_seq": 4})))
    t.publish("a.3", b"all", {"Nats-Rollup": "all"})
    t.direct("S", {"multi_last": ["a.*"]}, 0)
    t.direct("S.a.3", None)
    t.direct("S.a.1", None)
