"""Tests of source names, the source header, and the headers that a copied message keeps."""

from __future__ import annotations

from lakestream.protocol.subjects import short_hash
from lakestream.stream.core.config import (
    ExternalStream,
    StreamConsumerSource,
    StreamSource,
    SubjectTransformConfig,
)
from lakestream.stream.mirroring.origin import Origin, OriginStart, key_of, stored_header
from lakestream.stream.mirroring.sources import MAX_SOURCES, Positions, SourcePosition, with_source


def transforms(*pairs: tuple[str, str]) -> list[SubjectTransformConfig]:
    return [SubjectTransformConfig(src=src, dest=dest) for src, dest in pairs]


def test_names_are_hashed_as_by_nats_server() -> None:
    assert short_hash("RI.JS.API") == "dpDEksoe"
    assert short_hash("prep") == "rBO164NG"


def test_a_source_is_told_apart_by_origin_way_there_and_filters() -> None:
    external = ExternalStream(api="RI.JS.API", deliver="RI.D")
    several = transforms(("o.a", ""), ("p.*.*", "r.$2.$1"))
    assert key_of(StreamSource(name="O")) == "O > >"
    assert key_of(StreamSource(name="O", filter_subject="o.*")) == "O o.* >"
    assert key_of(StreamSource(name="O", external=external)) == "O:dpDEksoe > >"
    assert key_of(StreamSource(name="O", subject_transforms=several)) == "O o.a\fp.*.* >\fr.$2.$1"
    assert key_of(StreamSource(name="O", consumer=StreamConsumerSource(name="prep"))) == "O:C=rBO164NG > >"
    assert key_of(StreamSource(name="O", opt_start_seq=7)) == key_of(StreamSource(name="O"))


def test_the_first_transform_that_selects_a_subject_decides() -> None:
    source = StreamSource(name="O", subject_transforms=transforms(("o.a", ""), ("o.*", "p.$1"), ("o.b", "never")))
    origin = Origin(source, "$G", "S", mirror=False)
    assert [origin.renamed(subject) for subject in (b"o.a", b"o.b", b"x")] == [b"o.a", b"p.b", b"x"]


def test_a_consumer_is_asked_for_by_the_same_name_after_a_restart() -> None:
    source = StreamSource(name="O", filter_subject="o.*")
    subjects = [Origin(source, "$G", "S", mirror=False).request(OriginStart(), b"d")[0] for _ in range(2)]
    assert subjects[0] == subjects[1]
    assert subjects[0].startswith(b"$JS.API.CONSUMER.CREATE.O.JS_SRC_")
    assert subjects[0].endswith(b".o.*")
    assert Origin(source, "$G", "T", mirror=False).request(OriginStart(), b"d")[0] != subjects[0]


def test_a_request_begins_at_the_sequence_or_else_at_the_time() -> None:
    origin = Origin(StreamSource(name="O"), "A", "M", mirror=True)
    time = "2026-01-01T00:00:00Z"
    asked = [
        origin.request(start, b"d")[2]["config"]
        for start in (OriginStart(5, time), OriginStart(0, time), OriginStart())
    ]
    assert [config["deliver_policy"] for config in asked] == ["by_start_sequence", "by_start_time", "all"]
    assert asked[0]["opt_start_seq"] == 5
    assert asked[1]["opt_start_time"] == time
    assert asked[2]["metadata"] == {"_nats.mirror.acc": "A", "_nats.mirror.stream": "M"}


def test_positions_follow_from_headers_alone() -> None:
    positions = Positions()
    for value in (b"O 1 > > o.a ID", b"O 4 > > o.a ID", b"O 2 o.* > o.b", b"O:dpDEksoe 9 > > o.a OTHER"):
        positions.note(value)
    assert positions.get("O > >") == SourcePosition(4, "ID")
    assert positions.get("O o.* >") == SourcePosition(2, "")
    assert positions.get("O:dpDEksoe > >") == SourcePosition(9, "OTHER")
    again = Positions()
    again.load(positions.dump())
    assert again.get("O > >") == SourcePosition(4, "ID")


def test_headers_that_say_nothing_move_no_position() -> None:
    positions = Positions()
    for value in (
        b"",
        b"O",
        b"O 1",
        b"O x > > o.a ID",
        b"O -1 > > o ID",
        b"O " + b"9" * 30 + b" > > o ID",
        b"\xff\xfe 1",
    ):
        positions.note(value)
    assert not len(positions)


def test_positions_of_too_many_sources_are_forgotten_in_the_order_of_their_last_messages() -> None:
    positions = Positions()
    for number in range(MAX_SOURCES):
        positions.note(b"O%d 1 > > o ID" % number)
    positions.note(b"O0 2 > > o ID")
    positions.note(b"NEW 1 > > o ID")
    assert len(positions) == MAX_SOURCES
    assert positions.get("O0 > >") == SourcePosition(2, "ID")
    assert positions.get("O1 > >") is None


def test_what_was_asked_of_the_first_stream_is_asked_of_no_other() -> None:
    first = b"NATS/1.0\r\nA: b\r\nNats-Expected-Stream: O\r\n"
    block = first + b"Nats-Msg-Id: 1\r\nNats-Batch-Id: x\r\nNats-Batch-Sequence: 1\r\n\r\n"
    assert stored_header(block) == b"NATS/1.0\r\nA: b\r\nNats-Msg-Id: 1\r\n\r\n"
    assert stored_header(b"NATS/1.0\r\nNats-Expected-Last-Sequence: 0\r\n\r\n") == b""


def test_an_earlier_stream_is_not_named_any_more() -> None:
    block = b"NATS/1.0\r\nNats-Stream-Source: P 3 > > p ID\r\nA: b\r\n\r\n"
    assert with_source(block, b"O 1 > > p ID") == b"NATS/1.0\r\nA: b\r\nNats-Stream-Source: O 1 > > p ID\r\n\r\n"
    assert with_source(b"", b"O 1 > > o ID") == b"NATS/1.0\r\nNats-Stream-Source: O 1 > > o ID\r\n\r\n"
