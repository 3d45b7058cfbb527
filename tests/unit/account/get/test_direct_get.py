"""Tests of direct gets in all forms, with the answers of nats-server 2.15.1 to the same requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakestream.account.get import batch as direct_batch
from lakestream.account.get import direct, query
from lakestream.log.format.record import Record
from lakestream.log.index.subject_index import SubjectIndex
from lakestream.ports import Single
from lakestream.protocol.gotime import format_time
from lakestream.protocol.subjects import finished
from tests.unit.api_world import CLIENT, ApiWorld
from tests.unit.direct_world import (
    BAD,
    EMPTY,
    LEVEL,
    MALFORMED,
    NO_RESULTS,
    NOT_FOUND,
    TOO_MANY,
    Answer,
    got,
    message,
    several,
    stream_a,
    time_of,
)
from tests.unit.net.test_changes import Hurried

pytestmark = pytest.mark.unit


@pytest.fixture
def world() -> ApiWorld:
    return stream_a()


# ---------------------------------------------------------------------------------------------------- last by subject
@pytest.mark.parametrize(
    ("subject", "seq"), [("a.1", 10), ("a.0", 9), ("a.2", 8), ("a.>", 10), ("a.*", 10), (">", 10), ("*.2", 8)]
)
def test_last_by_subject(world: ApiWorld, subject: str, seq: int) -> None:
    assert got(world.direct(f"A.{subject}")) == [message(seq)]


def test_time_stamp_is_the_stored_time(world: ApiWorld) -> None:
    assert b"Nats-Time-Stamp: %b\r\n" % time_of(world, 10).encode() in world.direct("A.a.1")[0][0]


@pytest.mark.parametrize("nanos", [0, 1, 10, 120_000_000, 123_456_789, 999_999_990, 999_999_999])
def test_time_stamps_of_several_are_the_stored_times(nanos: int) -> None:
    times = [second * 10**9 + nanos for second in (1_700_000_000, 1_700_000_000, 1_700_000_007, 1_699_999_999)]
    records = [Record(seq, time_ns, b"a", b"", b"") for seq, time_ns in enumerate(times, 1)]
    blocks = [one.header for one in direct_batch.MessageHeaders("A").numbered(b"reply", records, 0, 0)]
    for block, at in zip(blocks, times, strict=True):
        assert b"Nats-Time-Stamp: %b\r\nNats-Num-Pending: " % format_time(at).encode() in block


@pytest.mark.parametrize("subject", ["zz", "a.9", "a", "a.*.b"])
def test_last_by_subject_of_nothing(world: ApiWorld, subject: str) -> None:
    assert world.direct(f"A.{subject}") == NOT_FOUND


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", [message(10)]),
        (b"null", [message(10)]),
        (b'{"foo":1}', [message(10)]),
        (b'{"no_hdr":false}', [message(10)]),
        (b'{"no_hdr":true}', [(b"", b"m10")]),
        (b'{"NO_HDR":true}', [(b"", b"m10")]),
        (b'{"max_bytes":5}', [message(10)]),
        (b'{"seq":0}', [message(10)]),
        (b"junk", MALFORMED),
        (b"[]", MALFORMED),
        (b" ", MALFORMED),
        (b'{"seq":3}', BAD),
        (b'{"no_hdr":true,"seq":2}', BAD),
        (b'{"batch":2}', BAD),
        (b'{"last_by_subj":"a.2"}', BAD),
        (b'{"next_by_subj":"a.2"}', BAD),
        (b'{"start_time":"2020-01-01T00:00:00Z"}', BAD),
        (b'{"multi_last":["a.2"]}', BAD),
        (b'{"up_to_seq":5}', BAD),
    ],
)
def test_last_by_subject_with_a_body(world: ApiWorld, body: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    assert got(world.direct("A.a.1", body)) == expected


def test_a_request_without_reply_subject_is_ignored(world: ApiWorld) -> None:
    before = len(world.client.got)
    for subject, body in (("A.a.1", b""), ("A", b'{"seq":1}'), ("A", b"junk")):
        world.hub.send(Single(b"$JS.API.DIRECT.GET." + subject.encode(), payload=body))
    world.settle()
    assert len(world.client.got) == before


@pytest.mark.parametrize("subject", ["A", "A.a.1"])
def test_api_level(world: ApiWorld, subject: str) -> None:
    body = b'{"seq":10}' if subject == "A" else b""
    for level, expected in ((b"6", LEVEL), (b"x", LEVEL), (b"5", [message(10)])):
        header = b"NATS/1.0\r\nNats-Required-Api-Level: %b\r\n\r\n" % level
        assert got(world.direct(subject, body, header)) == expected


@pytest.mark.parametrize("subject", ["A", "A.a.1", "A.a.*"])
def test_a_linearizable_get_of_a_server_alone_is_answered_at_once(world: ApiWorld, subject: str) -> None:
    body = b'{"last_by_subj":"a.*"}' if subject == "A" else b""
    for wanted, expected in ((b"linearizable", [message(10)]), (b"eventual", BAD), (b"", BAD)):
        header = b"NATS/1.0\r\nNats-Consistency: %b\r\n\r\n" % wanted
        assert got(world.direct(subject, body, header)) == expected


def test_a_mirror_refuses_linearizable_gets(world: ApiWorld) -> None:
    world.create("M", mirror={"name": "A"}, allow_direct=True, metadata={"lakestream.consistency": "linearizable"})
    assert world.direct("M", b'{"seq":1}', b"NATS/1.0\r\nNats-Consistency: linearizable\r\n\r\n") == [
        (b"NATS/1.0 412 Mirrors Are Not Linearizable\r\n\r\n", b"")
    ]


def test_the_metadata_of_consistency_is_checked_without_a_lake(world: ApiWorld) -> None:
    config = {"name": "L", "subjects": ["l.>"], "metadata": {"lakestream.consistency": "strong"}}
    wrong = world.ask("STREAM.CREATE.L", config)["error"]
    assert wrong["description"] == "lakestream.consistency is eventual or linearizable"


def test_stored_blocks_of_any_shape_can_be_added_to(world: ApiWorld) -> None:
    for stored in (b"NATS/1.0\r\nX: 1\r\n", b"NATS/1.0\r\nX: 1", b"NATS/1.0\r\nX: 1\r\n\r\n"):
        world.send("a.x", b"", stored)
        world.settle()
        assert world.direct("A.a.x")[0][0].startswith(b"NATS/1.0\r\nX: 1\r\nNats-Stream: A\r\n")


def test_allow_direct_is_what_opens_and_closes_it(world: ApiWorld) -> None:
    world.ask("STREAM.UPDATE.A", {"name": "A", "subjects": ["a.>"]})
    assert world.direct("A.a.1") == [(b"503", b"")]
    assert world.direct("A", {"seq": 1}) == [(b"503", b"")]
    world.ask("STREAM.UPDATE.A", {"name": "A", "subjects": ["a.>"], "allow_direct": True})
    assert got(world.direct("A.a.1")) == [message(10)]
    world.ask("STREAM.DELETE.A")
    assert world.direct("A.a.1") == [(b"503", b"")]


# ---------------------------------------------------------------------------------------------------- one message
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", EMPTY),
        (b"{}", EMPTY),
        (b"null", EMPTY),
        (b'{"no_hdr":true}', EMPTY),
        (b'{"foo":1}', EMPTY),
        (b'{"seq":0}', EMPTY),
        (b'{"last_by_subj":""}', EMPTY),
        (b'{"batch":3}', EMPTY),
        (b'{"batch":3,"seq":0}', EMPTY),
        (b'{"max_bytes":100}', EMPTY),
        (b'{"multi_last":[]}', EMPTY),
        (b"junk", MALFORMED),
        (b"[]", MALFORMED),
        (b'{"seq":"x"}', MALFORMED),
        (b'{"seq":-1}', MALFORMED),
        (b'{"seq":03}', MALFORMED),
        (b'{"seq":}', MALFORMED),
        (b'{"seq":18446744073709551616}', MALFORMED),
        (b'{"multi_last":["a.1"],"up_to_seq":18446744073709551616}', MALFORMED),
        (b'{"seq":1,"batch":9223372036854775808}', MALFORMED),
        (b'{"seq":1} {"seq":3}', MALFORMED),
        (b'{"start_time":"x"}', MALFORMED),
        (b'{"multi_last":["a.1"],"up_to_time":"x"}', MALFORMED),
        (b'{"seq":3,"last_by_subj":"a.1"}', BAD),
        (b'{"next_by_subj":"a.1","last_by_subj":"a.1"}', BAD),
        (b'{"start_time":"2020-01-01T00:00:00Z","seq":3}', BAD),
        (b'{"start_time":"2020-01-01T00:00:00Z","seq":3,"batch":2}', BAD),
        (b'{"start_time":"2020-01-01T00:00:00Z","seq":3,"multi_last":["a.1"]}', BAD),
        (b'{"seq":3,"up_to_seq":4,"up_to_time":"2020-01-01T00:00:00Z"}', BAD),
        (b'{"seq":18446744073709551615}', NOT_FOUND),
        (b'{"batch":3,"last_by_subj":"a.1"}', BAD),
        (b'{"multi_last":["a.1"],"last_by_subj":"a.1"}', BAD),
        (b'{"multi_last":["a.1"],"next_by_subj":"a.1"}', BAD),
        (b'{"multi_last":["a.1"],"up_to_seq":4,"up_to_time":"2020-01-01T00:00:00Z"}', BAD),
        (b'{"seq":5}', NOT_FOUND),
        (b'{"seq":99}', NOT_FOUND),
        (b'{"last_by_subj":"zz"}', NOT_FOUND),
        (b'{"next_by_subj":"zz","seq":1}', NOT_FOUND),
        (b'{"start_time":"2100-01-01T00:00:00Z"}', NOT_FOUND),
        (b'{"start_time":"2100-01-01T00:00:00Z","batch":3}', NOT_FOUND),
        (b'{"batch":100,"seq":11}', NOT_FOUND),
        (b'{"batch":100,"seq":6,"next_by_subj":"zz"}', NOT_FOUND),
        (b'{"seq":3}', [message(3)]),
        (b'{"seq": 3}', [message(3)]),
        (b'{"SEQ":3}', [message(3)]),
        (b'{"seq":4,"foo":1}', [message(4)]),
        (b'{"seq":3,"no_hdr":true}', [(b"", b"m3")]),
        (b'{"seq":1,"max_bytes":100}', [message(1)]),
        (b'{"batch":0,"seq":3}', [message(3)]),
        (b'{"last_by_subj":"a.1"}', [message(10)]),
        (b'{"last_by_subj":"a.>"}', [message(10)]),
        (b'{"next_by_subj":"a.1"}', [message(1)]),
        (b'{"next_by_subj":"a.1","seq":2}', [message(4)]),
        (b'{"next_by_subj":">","seq":5}', [message(6)]),
        (b'{"start_time":"2020-01-01T00:00:00Z"}', [message(1)]),
        (b'{"start_time":"2020-01-01T00:00:00Z","next_by_subj":"a.0"}', [message(3)]),
    ],
)
def test_requests(world: ApiWorld, body: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    assert got(world.direct("A", body)) == expected


def test_start_time_includes_a_message_of_just_then(world: ApiWorld) -> None:
    assert got(world.direct("A", {"start_time": time_of(world, 4)})) == [message(4)]
    assert got(world.direct("A", {"start_time": time_of(world, 4), "next_by_subj": "a.2"})) == [message(8)]


# ---------------------------------------------------------------------------------------------------- batches
@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ({"batch": 3, "seq": 4}, [(4, 5, 0), (6, 4, 4), (7, 3, 6)]),
        ({"batch": 3, "seq": 1}, [(1, 8, 0), (2, 7, 1), (3, 6, 2)]),
        ({"batch": 2, "seq": 5}, [(6, 4, 0), (7, 3, 6)]),
        ({"batch": 1, "seq": 10}, [(10, 0, 0)]),
        ({"batch": 100, "seq": 6}, [(6, 4, 0), (7, 3, 6), (8, 2, 7), (9, 1, 8), (10, 0, 9)]),
        ({"batch": 3, "next_by_subj": "a.1"}, [(1, 3, 0), (4, 2, 1), (7, 1, 4)]),
        ({"batch": 2, "next_by_subj": "a.1", "seq": 2}, [(4, 2, 0), (7, 1, 4)]),
        ({"batch": 20, "seq": 1, "next_by_subj": "a.1"}, [(1, 3, 0), (4, 2, 1), (7, 1, 4), (10, 0, 7)]),
        ({"batch": 2, "next_by_subj": "a.*"}, [(1, 8, 0), (2, 7, 1)]),
        ({"batch": 3, "seq": 1, "up_to_seq": 2}, [(1, 8, 0), (2, 7, 1), (3, 6, 2)]),
        ({"batch": 2, "start_time": "2020-01-01T00:00:00Z"}, [(1, 8, 0), (2, 7, 1)]),
        ({"batch": 10, "seq": 1, "max_bytes": 1}, [(1, 8, 0)]),
        ({"batch": 10, "seq": 1, "max_bytes": -1}, [(1, 8, 0)]),
        ({"batch": 3, "seq": 1, "max_bytes": 23}, [(1, 8, 0)]),
        ({"batch": 3, "seq": 1, "max_bytes": 24}, [(1, 8, 0), (2, 7, 1)]),
    ],
)
def test_batches(world: ApiWorld, body: Any, messages: list[Answer]) -> None:
    assert got(world.direct("A", body)) == several(*messages)


def test_bare_batches_leave_the_count_at_the_end_as_it_was(world: ApiWorld) -> None:
    answers = world.direct("A", {"batch": 3, "seq": 4, "no_hdr": True})
    assert answers == [(b"", b"m4"), (b"", b"m6"), (b"", b"m7"), *several((7, 6, 0))[1:]]


@pytest.mark.parametrize(
    "body",
    [
        {"batch": -1, "seq": 99},
        {"batch": -1, "seq": 1, "next_by_subj": "zz"},
        {"batch": -1, "start_time": "2100-01-01T00:00:00Z"},
    ],
)
def test_a_negative_batch_of_nothing_has_an_end_all_the_same(world: ApiWorld, body: Any) -> None:
    assert world.direct("A", body) == several(end=(0, 0))


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "1600-01-01T00:00:00Z", "1969-12-31T23:59:59.999999999Z"])
def test_times_long_before_the_first_message_overflow_nothing(world: ApiWorld, at: str) -> None:
    assert got(world.direct("A", {"start_time": at})) == [message(1)]
    assert world.direct("A", {"multi_last": ["a.*"], "up_to_time": at}) == NO_RESULTS


@pytest.mark.parametrize("at", ["2263-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_times_long_after_the_last_message_overflow_nothing(world: ApiWorld, at: str) -> None:
    assert world.direct("A", {"start_time": at}) == NOT_FOUND
    assert got(world.direct("A", {"multi_last": ["a.1"], "up_to_time": at})) == several((10, 0, 0), up_to=10)


def test_up_to_a_sequence_that_is_not_there_yet(world: ApiWorld) -> None:
    """A stream in memory answers up_to a future sequence with its messages, one on disk with none.

    nats-server does the same.
    """
    assert world.direct("A", {"multi_last": ["a.1"], "up_to_seq": 11}) == NO_RESULTS
    world.create("M", subjects=["m"], allow_direct=True, storage="memory")
    world.publish("m", b"x")
    assert b"Nats-UpTo-Sequence: 7\r\n" in world.direct("M", {"multi_last": ["m"], "up_to_seq": 7})[-1][0]


def test_a_negative_batch_is_only_its_end(world: ApiWorld) -> None:
    assert world.direct("A", {"batch": -1, "seq": 3}) == [
        (b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 7\r\nNats-Last-Sequence: 0\r\n\r\n", b"")
    ]


def test_large_batches_are_sent_in_pieces(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_batch, "PIECE", 3)
    reply = world.send("$JS.API.DIRECT.GET.A", {"batch": 8, "seq": 1})
    assert len(world.answers(reply)) == 3
    world.settle()
    seqs = [1, 2, 3, 4, 6, 7, 8, 9]
    expected = several(*[(seq, 8 - at, [0, *seqs][at]) for at, seq in enumerate(seqs)])
    assert got(world.answers(reply)) == expected


def test_pieces_are_bounded_in_bytes(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_batch, "PIECE_BYTES", 1)
    reply = world.send("$JS.API.DIRECT.GET.A", {"batch": 100, "seq": 1})
    assert len(world.answers(reply)) == 1
    world.settle()
    assert len(world.answers(reply)) == 10


def test_a_batch_looks_for_no_more_messages_than_it_may_have(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, from_on = list[int](), query.from_on

    def counted(*arguments: Any) -> Iterator[int]:
        for seq in from_on(*arguments):
            looked.append(seq)
            yield seq

    monkeypatch.setattr(query, "from_on", counted)
    assert len(world.direct("A", {"batch": 2, "seq": 1, "next_by_subj": "a.*"})) == 3
    assert len(looked) == 2


def test_a_batch_waits_for_a_slow_reader(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_batch, "PIECE", 4)
    world.client.congested = True
    reply = world.send("$JS.API.DIRECT.GET.A", {"batch": 9, "seq": 1})
    world.settle()
    assert not world.answers(reply)
    world.client.congested = False
    for callback in world.client.drained:
        callback()
    world.settle()
    assert len(world.answers(reply)) == 10


def test_batches_beyond_the_limit_are_refused_until_others_were_sent(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "MAX_SENDING", 2)
    world.client.congested = True
    replies = [world.send("$JS.API.DIRECT.GET.A", {"batch": 9, "seq": 1}) for _ in range(2)]
    replies.append(world.send("$JS.API.DIRECT.GET.A", {"multi_last": ["a.1"]}))
    world.settle()
    assert [len(world.answers(reply)) for reply in replies] == [0, 0, 1]
    assert world.answers(replies[2])[0][0] == b"NATS/1.0 429 Too Many Requests\r\n\r\n"
    world.client.congested = False
    for callback in world.client.drained:
        callback()
    world.settle()
    assert [len(world.answers(reply)) for reply in replies] == [10, 10, 1]
    for _ in range(3):
        reply = world.send("$JS.API.DIRECT.GET.A", {"batch": 9, "seq": 1})
        world.settle()
        assert len(world.answers(reply)) == 10


def test_messages_that_go_while_a_batch_runs_are_left_out(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_batch, "PIECE", 2)
    reply = world.send("$JS.API.DIRECT.GET.A", {"batch": 100, "next_by_subj": "a.*", "seq": 1})
    world.stream("A").store.remove(4)
    world.stream("A").store.remove(9)
    world.settle()
    assert [data for _, data in world.answers(reply)] == [b"m1", b"m2", b"m3", b"m6", b"m7", b"m8", b"m10", b""]


def test_a_deleted_stream_ends_its_batches(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_batch, "PIECE", 2)
    reply = world.send("$JS.API.DIRECT.GET.A", {"batch": 100, "seq": 1})
    world.engine.delete_stream("A", lambda _: None)
    world.settle()
    assert len(world.answers(reply)) == 2


# ---------------------------------------------------------------------------------------------------- multi last
ALL_LAST = [(8, 2, 0), (9, 1, 8), (10, 0, 9)]


@pytest.mark.parametrize(
    ("body", "messages", "up_to"),
    [
        ({"multi_last": ["a.1", "a.2"]}, [(8, 1, 0), (10, 0, 8)], 10),
        ({"multi_last": ["a.2", "a.1"]}, [(8, 1, 0), (10, 0, 8)], 10),
        ({"multi_last": ["a.1", "a.1"]}, [(10, 0, 0)], 10),
        ({"multi_last": ["zz", "a.1"]}, [(10, 0, 0)], 10),
        ({"multi_last": ["a.*"]}, ALL_LAST, 10),
        ({"multi_last": [">"]}, ALL_LAST, 10),
        ({"multi_last": ["a.1", "a.*"]}, ALL_LAST, 10),
        ({"multi_last": ["a.*"], "no_hdr": True}, ALL_LAST, 10),
        ({"multi_last": ["a.*"], "batch": 0}, ALL_LAST, 10),
        ({"multi_last": ["a.*"], "batch": -1}, ALL_LAST, 10),
        ({"multi_last": ["a.*"], "start_time": "2100-01-01T00:00:00Z"}, ALL_LAST, 10),
        ({"multi_last": ["a.*"], "up_to_seq": 0}, ALL_LAST, 10),
        ({"multi_last": ["a.*"], "up_to_time": "2100-01-01T00:00:00Z"}, ALL_LAST, 10),
        ({"multi_last": ["a.*"], "seq": 9}, [(9, 1, 0), (10, 0, 9)], 10),
        ({"multi_last": ["a.*"], "batch": 2}, ALL_LAST[:2], 10),
        ({"multi_last": ["a.*"], "max_bytes": 1}, ALL_LAST[:1], 10),
        ({"multi_last": ["a.*"], "max_bytes": 5}, ALL_LAST[:1], 10),
        ({"multi_last": ["a.*"], "max_bytes": 6}, ALL_LAST[:2], 10),
        ({"multi_last": ["a.*"], "up_to_seq": 4}, [(2, 2, 0), (3, 1, 2), (4, 0, 3)], 4),
        ({"multi_last": ["a.*"], "up_to_seq": 5}, [(2, 2, 0), (3, 1, 2), (4, 0, 3)], 5),
        ({"multi_last": ["a.*"], "up_to_seq": 2}, [(1, 1, 0), (2, 0, 1)], 2),
        ({"multi_last": ["a.*"], "up_to_seq": 1}, [(1, 0, 0)], 1),
        ({"multi_last": ["a.*"], "up_to_seq": 4, "seq": 3}, [(3, 1, 0), (4, 0, 3)], 4),
        ({"multi_last": ["a.*"], "up_to_seq": 4, "batch": 1}, [(2, 2, 0)], 4),
    ],
)
@pytest.mark.parametrize("hurried", [False, True], ids=["at once", "in steps"])
def test_multi_last(
    world: ApiWorld,
    body: Any,
    messages: list[Answer],
    up_to: int,
    hurried: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if hurried:
        hurry(monkeypatch)
    assert got(world.direct("A", body)) == several(*messages, up_to=up_to)


@pytest.mark.parametrize(
    "body",
    [
        {"multi_last": ["zz"]},
        {"multi_last": [""]},
        {"multi_last": ["a..b"]},
        {"multi_last": ["a.*"], "up_to_seq": 99},
        {"multi_last": ["a.*"], "up_to_time": "2000-01-01T00:00:00Z"},
        {"multi_last": ["a.*.>", "a.1..b"]},
    ],
)
@pytest.mark.parametrize("hurried", [False, True], ids=["at once", "in steps"])
def test_multi_last_without_results(world: ApiWorld, body: Any, hurried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if hurried:
        hurry(monkeypatch)
    assert world.direct("A", body) == NO_RESULTS


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every search take too long to be made at once, and one step look at one subject."""
    monkeypatch.setattr(direct, "SEARCH_NS", -1)
    monkeypatch.setattr(query, "PATTERNS_AT_ONCE", 1)


def test_a_search_in_steps_lets_others_in_between_and_shows_one_moment(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """900 patterns over 20,000 subjects kept the event loop for 13 s."""
    hurry(monkeypatch)
    world.create("B", subjects=["b.>"], allow_direct=True)
    for number in range(2000):
        world.publish(f"b.{number}.{number % 500}", b"x")
    share = Hurried(looks=0)
    gets = direct.Gets(world.stream("B"), 1 << 20, share)

    def ask(reply: bytes, body: bytes) -> bytes:
        gets.by_request(b"$JS.API.DIRECT.GET.B", reply, b"", body, CLIENT)
        return reply

    reply = ask(b"_INBOX.me.b1", b'{"multi_last":["b.*.1","b.*.2","b.1.1"]}')
    steps = 0
    while not world.answers(reply):
        share.turn()
        steps += 1
        if steps == 4:
            world.publish("b.1.1", b"later")
            world.publish("b.new.1", b"later")
        world.settle()
    answers = world.answers(reply)
    assert [data for _, data in answers] == [b"x"] * 8 + [b""]
    assert b"Nats-UpTo-Sequence: 2000\r\n" in answers[-1][0]
    assert steps > 5
    share.looks = share.left = 1000
    reply = ask(b"_INBOX.me.b2", b'{"multi_last":["b.1.*","b.new.>"]}')
    share.turn()
    world.settle()
    assert [data for _, data in world.answers(reply)] == [b"later", b"later", b""]


def test_a_thousand_literal_subjects_are_looked_up_without_a_search(world: ApiWorld) -> None:
    """Of a million subjects all were compared with each request: 1.5 s."""
    store = world.stream("A").store
    patterns = [b"a.1"] * 1000 + [b"a.zz%d" % number for number in range(1000)]
    assert len(list(query.multi_last(store, patterns, 10, 10))) <= 2 * (1 + len(patterns) // query.PATTERNS_AT_ONCE)
    assert finished(query.multi_last(store, [b"a.1"] * 1000, store.last_seq, 10)) == [10]


def test_the_search_of_a_client_that_has_gone_is_not_made(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    begun: list[object] = []
    newest = SubjectIndex.newest

    def asked(index: SubjectIndex, *some: Any) -> Any:
        begun.append(some)
        yield from newest(index, *some)

    monkeypatch.setattr(SubjectIndex, "newest", asked)
    request = b'{"multi_last":["*.1"]}'
    world.hub.send(Single(b"$JS.API.DIRECT.GET.A", b"_INBOX.gone", payload=request))
    assert len(world.direct("A", {"multi_last": ["*.1"]})) == 2
    assert len(begun) == 1


def test_searches_beyond_the_limit_are_refused(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    monkeypatch.setattr(direct, "MAX_SEARCHES", 3)
    share, ask = hurried(world, looks=1000)
    replies = [ask() for _ in range(5)]
    share.turn()
    world.settle()
    statuses = [world.answers(reply)[0][0].split()[1] for reply in replies]
    assert statuses.count(b"429") == 2
    again = ask()
    share.turn()
    assert len(world.answers(again)) == 2, "there is room again"


def hurried(world: ApiWorld, looks: int) -> tuple[Hurried, Callable[[], bytes]]:
    """Return a share of turns for so many requests, and a function that requests multi_last and returns the reply."""
    share = Hurried(looks)
    gets = direct.Gets(world.stream("A"), 1 << 20, share)
    numbers = itertools.count()

    def ask() -> bytes:
        reply = b"_INBOX.me.h%d" % next(numbers)
        gets.by_request(b"$JS.API.DIRECT.GET.A", reply, b"", b'{"multi_last":["a.1"]}', CLIENT)
        return reply

    return share, ask


def test_requests_for_which_a_turn_has_no_time_are_answered_in_later_ones(world: ApiWorld) -> None:
    """The small reads of eight clients with multi_last requests took 16 ms of one turn."""
    share, ask = hurried(world, looks=2)
    replies = [ask() for _ in range(5)]
    answered = [sum(bool(world.answers(reply)) for reply in replies)]
    for _ in range(2):
        share.turn()
        world.settle()
        answered.append(sum(bool(world.answers(reply)) for reply in replies))
    assert answered == [2, 5, 5]
    assert all(got(world.answers(reply)) == got(world.direct("A", {"multi_last": ["a.1"]})) for reply in replies)


def test_requests_that_wait_for_a_turn_are_bounded(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "MAX_SEARCHES", 3)
    share, ask = hurried(world, looks=0)
    replies = [ask() for _ in range(5)]
    assert [world.answers(reply)[0][0].split()[1] for reply in replies[3:]] == [b"429", b"429"]
    share.turn()
    assert all(len(world.answers(reply)) == 2 for reply in replies[:3])
    assert not world.answers(ask()), "there is room again"


def test_a_request_that_waits_for_a_turn_ends_with_its_client(world: ApiWorld) -> None:
    share, ask = hurried(world, looks=0)
    ask()
    world.hub.leave(world.hub.interest_graph.match(b"_INBOX.me.h0").plain[0])
    before = len(world.client.got)
    share.turn()
    assert len(world.client.got) == before


def test_multi_last_all_below_seq_is_only_its_end(world: ApiWorld) -> None:
    assert world.direct("A", {"multi_last": ["a.*"], "up_to_seq": 4, "seq": 8}) == several(end=(0, 0), up_to=4)


def test_up_to_time_ends_before_a_message_of_just_then(world: ApiWorld) -> None:
    """up_to_time is exclusive, as in nats-server."""
    times = {seq: world.stream("A").store.time_of(seq) for seq in (1, 3, 4, 6)}
    assert len(set(times.values())) == 4, "the world's messages need times of their own"
    asked = {"multi_last": ["a.*"], "up_to_time": time_of(world, 4)}
    assert got(world.direct("A", asked)) == several((1, 2, 0), (2, 1, 1), (3, 0, 2), up_to=3)
    asked["up_to_time"] = time_of(world, 6)  # 5 is deleted: the stream's state up to there
    assert got(world.direct("A", asked)) == several((2, 2, 0), (3, 1, 2), (4, 0, 3), up_to=5)
    assert world.direct("A", {"multi_last": ["a.*"], "up_to_time": time_of(world, 1)}) == NO_RESULTS


def test_multi_last_is_limited_to_1024_subjects() -> None:
    world = ApiWorld()
    world.create("D", subjects=["d.*"], allow_direct=True)
    for number in range(1, 1026):
        world.send(f"d.{number}", b"m")
    world.settle()
    assert world.direct("D", {"multi_last": ["d.*"]}) == TOO_MANY
    assert world.direct("D", {"multi_last": ["d.*"], "batch": 5}) == TOO_MANY
    answers = world.direct("D", {"multi_last": ["d.*"], "up_to_seq": 1024})
    assert len(answers) == 1025
    assert b"Nats-UpTo-Sequence: 1024" in answers[-1][0]


def test_too_many_subjects_are_refused_without_looking_at_all_of_them(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.stream("A").store
    looked: list[int] = []

    def newest(index: Any, patterns: Any, through: int) -> Iterator[list[int]]:
        for number in range(100):
            looked.append(1 + number % 3)
            yield looked[-1:]

    monkeypatch.setattr(SubjectIndex, "newest", newest)
    assert finished(query.multi_last(store, [b"a.*"], store.last_seq, 1)) is None
    assert len(looked) == 2


def test_the_end_comes_with_the_last_message(world: ApiWorld) -> None:
    """The final status is written together with the last message, so that a small answer needs no second turn."""
    for body in ({"seq": 1, "batch": 9}, {"seq": 1, "batch": 100}, {"multi_last": ["a.*"]}):
        reply = world.send("$JS.API.DIRECT.GET.A", body)
        assert world.answers(reply)[-1][0].startswith(b"NATS/1.0 204 EOB")


def test_an_empty_stream(world: ApiWorld) -> None:
    world.ask("STREAM.PURGE.A")
    assert world.direct("A.a.1") == NOT_FOUND
    assert world.direct("A", {"seq": 1}) == NOT_FOUND
    assert world.direct("A", {"seq": 1, "batch": 3}) == NOT_FOUND
    assert world.direct("A", {"start_time": "2000-01-01T00:00:00Z"}) == NOT_FOUND
    assert world.direct("A", {"multi_last": ["a.*"]}) == NO_RESULTS
