"""Tests of parts of replicas: columns of records, ledgers that are replaced, files of other replicas."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.lake.errors import StagingConflict
from lakestream.lake.staging import staging
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.log.format.errors import CorruptLog, CorruptRecord
from lakestream.log.format.files import Files
from lakestream.log.format.record import columns, encode_record, iter_records
from lakestream.log.format.segment import SealedSegment
from lakestream.log.store.repair import take_over, verify
from lakestream.log.store.segment_log import LogOptions
from lakestream.stream.consumer.ledger import Ledger
from lakestream.stream.features.dedupe import MessageIds
from tests.unit.logkit import MiniStream, close_all, flip, message

pytestmark = pytest.mark.unit

subjects = st.binary(min_size=1, max_size=12)
headers = st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"])
messages = st.lists(st.tuples(subjects, headers, st.binary(max_size=40)), min_size=1, max_size=12)


# ---------------------------------------------------------------- columns
@given(messages, st.integers(1, 1 << 40))
def test_columns_say_what_the_records_say(found: list[tuple[bytes, bytes, bytes]], first: int) -> None:
    body = b"".join(encode_record(seq, 7 * seq, *one) for seq, one in enumerate(found, first))
    records = list(iter_records(body))
    made = columns(body)
    assert made is not None
    assert (made.first_seq, made.last_time) == (first, records[-1].time_ns)
    assert made.subjects == [record.subject for record in records]
    assert sum(made.lengths) == len(body)
    assert made.headers == [
        (place, record.header, record.time_ns) for place, record in enumerate(records) if record.header
    ]


def test_sequences_that_jump_are_left_to_the_slow_way() -> None:
    assert columns(encode_record(1, 1, b"a", b"", b"x") + encode_record(3, 2, b"a", b"", b"y")) is None


def test_records_that_do_not_end_with_the_body_are_refused() -> None:
    with pytest.raises(CorruptRecord):
        columns(encode_record(1, 1, b"a", b"", b"x") + b"rest")


# ---------------------------------------------------------------- ledgers
def test_a_whole_delta_ends_what_was_known_and_not_logged() -> None:
    leader, before = Ledger(0, 1), Ledger(0, 1)
    for ledger in (leader, before):
        ledger.deliver([1, 2, 3], 10, 99)
        ledger.take_delta()
    before.deliver([4, 5], 11, 99)
    before.ack(2, 12)
    leader.ack(1, 13)
    before.apply(leader.take_whole())
    assert before.whole() == leader.whole()
    assert (sorted(before.pending), before.delivered_consumer, before.floor()) == ([2, 3], 3, (1, 1))
    assert before.take_delta() is None
    leader.ack(2, 14)
    delta = leader.take_delta()
    assert delta is not None
    before.apply(delta)
    assert before.whole() == leader.whole()


# ---------------------------------------------------------------- message ids
def test_ids_of_messages_whose_fate_is_unknown_are_forgotten() -> None:
    dedupe = MessageIds(1_000)
    for seq, name in enumerate((b"a", b"b", b"c"), 1):
        dedupe.add(name, seq, 10 * seq)
    dedupe.forget_after(1)
    assert [dedupe.seen(name, 40) for name in (b"a", b"b", b"c")] == [1, 0, 0]
    assert (dedupe.last_id, dedupe.last_seq) == (b"a", 1)


# ---------------------------------------------------------------- files of other replicas
def sealed_replica(directory: Path, *numbers: int) -> SealedSegment:
    """Seal a segment with these messages and a salt of its own; return it."""
    stream = MiniStream(str(directory), LogOptions(seal_bytes=500, seal_age_ns=1 << 60))
    stream.publish(*map(message, numbers))
    stream.publish(*map(message, numbers))
    found: SealedSegment = stream.store.sealed()[0]
    close_all()
    return found


@pytest.fixture
def replicas(tmp_path: Path) -> tuple[SealedSegment, SealedSegment, SealedSegment]:
    """Return two replicas' segments of the same entries, and one of other entries."""
    same = range(20)
    return (
        sealed_replica(tmp_path / "a", *same),
        sealed_replica(tmp_path / "b", *same),
        sealed_replica(tmp_path / "c", *range(1, 21)),
    )


def test_another_replicas_file_of_the_same_entries_counts_as_staged(
    tmp_path: Path, replicas: tuple[SealedSegment, SealedSegment, SealedSegment]
) -> None:
    one, same, other = replicas
    assert Path(one.path).read_bytes() != Path(same.path).read_bytes()
    lake, identity = str(tmp_path / "lake"), StreamIdentity("S", "$G", "u1", 1)
    lakes.require(lake, create=True)
    target = staging.stage(one.path, one.first_index, one.last_index, identity, lake)
    assert staging.stage(same.path, one.first_index, one.last_index, identity, lake) == target
    with pytest.raises(StagingConflict):
        staging.stage(other.path, one.first_index, one.last_index, identity, lake)
    assert os.path.samefile(target, one.path)


def test_a_damaged_segment_is_replaced_only_by_the_same_entries(
    tmp_path: Path, replicas: tuple[SealedSegment, SealedSegment, SealedSegment]
) -> None:
    one, same, other = replicas
    stream = MiniStream(str(tmp_path / "a"), LogOptions(seal_bytes=500, seal_age_ns=1 << 60))
    segment = stream.store.sealed_at(one.path)
    assert segment is not None
    flip(one.path, 150)
    with pytest.raises(CorruptLog):
        verify(Files(), one.path)
    with pytest.raises(CorruptLog, match="same messages"):
        take_over(Files(), segment, other.path)
    stream.store.mended(segment, take_over(Files(), segment, same.path))
    verify(Files(), one.path)
    assert [record.data for record in stream.all()][:20] == [message(number)[2] for number in range(20)]
    close_all()
