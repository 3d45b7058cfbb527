"""Tests of parts of replicas: columns of records, ledgers that are replaced, files of other replicas."""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from lakestream.lake.errors import StagingConflict
from lakestream.lake.staging import staging
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage import lake as lakes
from lakestream.log.format.errors import CorruptLog, CorruptRecord
from lakestream.log.format.files import Files
from lakestream.log.format.frame import HEADER_SIZE as FRAME_HEADER
from lakestream.log.format.frame import Kind
from lakestream.log.format.packed import pack, read_intact
from lakestream.log.format.record import Record, columns, encode_record, iter_records
from lakestream.log.format.segment import HEADER_SIZE, SealedSegment, iter_frames
from lakestream.log.store.repair import DamagedEverywhere, assemble, readable, take_over, verify
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


def copies_of(directory: Path, bodies: list[bytes], packed: list[bool]) -> list[str]:
    """Seal the same messages, a write each, on several members; return their files."""
    made = list[str]()
    for place, is_packed in enumerate(packed):
        stream = MiniStream(str(directory / str(place)), LogOptions(seal_bytes=1 << 30, seal_age_ns=1 << 60))
        for number, body in enumerate(bodies):
            stream.publish((b"s.%d" % (number % 7), b"", body))
        stream.store.ask_seal()
        stream.store.seal_if_old()
        made.append(stream.store.sealed()[0].path)
        close_all()
        assert not is_packed or pack(Files(), made[-1])
    return made


def overwrite(rng: random.Random, path: str) -> None:
    """Write zeros over some parts of a file."""
    length = os.path.getsize(path)
    with open(path, "r+b") as file:
        for _ in range(rng.randrange(5)):
            file.seek(rng.randrange(rng.choice([length, 120])))
            file.write(bytes(rng.choice([1, 50, 5_000, 100_000])))
        file.truncate(length)


@given(
    sizes=st.lists(st.integers(1, 20_000), min_size=3, max_size=12),
    packed=st.lists(st.booleans(), min_size=3, max_size=3),
    seed=st.integers(0, 1 << 32),
)
def test_a_segment_is_made_of_damaged_copies_if_each_entry_is_intact_in_one(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], packed: list[bool], seed: int
) -> None:
    directory = tmp_path_factory.mktemp("copies")
    paths = copies_of(directory, [b"%d " % size * size for size in (200, *sizes)], packed)
    stream = MiniStream(str(directory / "0"), LogOptions(seal_bytes=1 << 30, seal_age_ns=1 << 60))
    segment = stream.store.sealed_at(paths[0])
    assert segment is not None
    *_, whole = read_intact(Files(), paths[0])
    spans = [
        (at - FRAME_HEADER, at + len(frame.body)) for frame, at in iter_frames(whole, "", segment.header, segment.end)
    ]
    before = [readable(Files(), path, segment.end) for path in paths]
    rng = random.Random(seed)
    for path in paths:
        overwrite(rng, path)
    after = [readable(Files(), path, segment.end) for path in paths]

    def has(copy: int, begin: int, stop: int) -> bool:
        return after[copy][begin:stop] == before[copy][begin:stop]

    salt_at = HEADER_SIZE + FRAME_HEADER - 4
    salted = [copy for copy in range(3) if has(copy, 0, 40) or has(copy, salt_at, salt_at + 4)]
    possible = all(any(has(copy, *span) for copy in salted) for span in spans)
    event("possible" if possible else "impossible")
    target = str(directory / "made")
    if possible:
        assemble(Files(), segment, after, target, {})
        assert read_intact(Files(), target)[2] == whole
    else:
        with pytest.raises(CorruptLog, match=r"entry \d+ is damaged in all 3 copies"):
            assemble(Files(), segment, after, target, {})
    close_all()


@pytest.mark.parametrize("same", [True, False])
def test_an_entry_that_is_damaged_in_all_copies_is_made_of_the_tables_messages_if_its_header_proves_them(
    tmp_path: Path, same: bool
) -> None:
    paths = copies_of(tmp_path, [b"%d " % number * 50 for number in range(6)], [False] * 3)
    stream = MiniStream(str(tmp_path / "0"), LogOptions(seal_bytes=1 << 30, seal_age_ns=1 << 60))
    segment = stream.store.sealed_at(paths[0])
    assert segment is not None
    *_, whole = read_intact(Files(), paths[0])
    rows = {record.seq: record for record in stream.all()}
    spans = [at for frame, at in iter_frames(whole, "", segment.header, segment.end) if frame.kind is Kind.MESSAGES]
    for path in paths:
        for at in spans[2:4]:
            flip(path, at + 60)
    copies, target = [readable(Files(), path, segment.end) for path in paths], str(tmp_path / "made")
    found = dict[int, Record]()
    with pytest.raises(DamagedEverywhere) as lacking:
        assemble(Files(), segment, copies, target, found)
    assert lacking.value.seqs == [3]
    found[3] = rows[3] if same else msgspec.structs.replace(rows[3], data=rows[3].data[:-1] + b"?")
    with pytest.raises(DamagedEverywhere) as lacking:
        assemble(Files(), segment, copies, target, found)
    assert lacking.value.seqs == ([4] if same else [3])
    if same:
        assemble(Files(), segment, copies, target, found | {4: rows[4]})
        assert read_intact(Files(), target)[2] == whole
    close_all()
