"""Tests of the vectorised decoder compared with the plain record iterator, and with damaged input."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.lake.errors import BadSegment, UnfitSubject
from lakestream.lake.staging import staging
from lakestream.lake.table import segments
from lakestream.lake.table.departures import DeletedMessages
from lakestream.lake.table.schema import join_headers
from lakestream.log.format.record import Record
from tests.lake.model import Message, StreamModel, flights

pytestmark = pytest.mark.unit


def decoded(
    path: str, after: int = 0, dead: DeletedMessages | None = None, as_partitions: bool = False
) -> list[Record]:
    """Return the rows of the decoder's batches as the records that they represent."""
    found = []
    for batch in segments.decode(path, after, dead, as_partitions):
        for row in batch.to_pylist():
            header = b"" if row["headers"] is None else join_headers(row["headers"])
            if row["header_block"] is not None:
                header = row["header_block"]
            raw = row["subject_bytes"]
            subject = row["subject"].encode() if raw is None else raw
            found.append(Record(row["seq"], row["time_ns"], subject, header, row["data"]))
    return found


HEADERS = st.one_of(
    st.just(b""),
    st.sampled_from(
        [b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\n\r\n", b"\xff\r\n:\r\n"]
    ),
    st.binary(min_size=1, max_size=60),
    st.lists(st.tuples(st.sampled_from(["a", "b", "Ü"]), st.text("xyz é", max_size=4)), max_size=5).map(
        lambda pairs: join_headers([(name, [value]) for name, value in pairs])
    ),
)
SUBJECTS = st.one_of(st.sampled_from([b"a.b", b"A.b", b"x"]), st.binary(min_size=1, max_size=30))
MESSAGES = st.lists(st.tuples(SUBJECTS, HEADERS, st.binary(max_size=100)), max_size=40)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(MESSAGES, st.integers(1, 10), st.lists(st.integers(1, 80), max_size=5)), min_size=1, max_size=4)
)
def test_the_decoder_gives_what_the_records_say(steps: list[tuple[list[Message], int, list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = StreamModel(Path(directory))
        stored: list[Record] = []
        for messages, per_frame, removals in steps:
            stored += model.publish(messages, per_frame)
            model.remove(removals)
        sealed = model.seal()
        assert decoded(sealed.path) == stored
        footer = staging.footer(sealed.path)
        dead = DeletedMessages(footer.floor, footer.removed)
        assert decoded(sealed.path, dead=dead) == model.expected()
        middle = (sealed.first_index + sealed.last_index) // 2
        skipped = len(stored) - len(decoded(sealed.path, after=middle))
        assert decoded(sealed.path, after=middle) == stored[skipped:]
        assert decoded(sealed.path, after=sealed.last_index) == []


def test_after_cuts_between_entries(tmp_path: Path) -> None:
    model = StreamModel(tmp_path)
    stored = model.publish(flights(95), per_frame=10)
    sealed = model.seal()  # index 1 is the stream's creation, 2 to 11 hold the messages
    assert decoded(sealed.path, after=1) == stored
    assert decoded(sealed.path, after=4) == stored[30:]
    assert decoded(sealed.path, after=10) == stored[90:]


def test_sequences_may_jump(tmp_path: Path) -> None:
    model = StreamModel(tmp_path)
    stored = model.publish(flights(5))
    model.purge(1_000_000)
    stored += model.publish(flights(5))
    sealed = model.seal()
    assert [record.seq for record in stored] == [1, 2, 3, 4, 5, *range(1_000_000, 1_000_005)]
    assert decoded(sealed.path) == stored
    assert decoded(sealed.path, dead=DeletedMessages(staging.footer(sealed.path).floor)) == stored[5:]


def test_batches_are_cut_by_rows_and_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = StreamModel(tmp_path)
    stored = model.publish(flights(100, size=50))
    sealed = model.seal()
    monkeypatch.setattr(segments, "BATCH_ROWS", 30)
    assert [batch.num_rows for batch in segments.decode(sealed.path)] == [30, 30, 30, 10]
    monkeypatch.setattr(segments, "BATCH_BYTES", 200)
    assert max(batch.num_rows for batch in segments.decode(sealed.path)) <= 3
    assert decoded(sealed.path) == stored


def test_one_message_larger_than_a_batch_is_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = StreamModel(tmp_path)
    stored = model.publish([(b"s", b"", bytes(5000)), (b"s", b"", bytes(5000))])
    sealed = model.seal()
    monkeypatch.setattr(segments, "BATCH_BYTES", 100)
    assert decoded(sealed.path) == stored


def test_a_segment_without_messages_decodes_to_nothing(tmp_path: Path) -> None:
    model = StreamModel(tmp_path)
    assert decoded(model.seal().path) == []


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_flipped_byte_goes_unnoticed(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = StreamModel(Path(directory))
        model.publish(flights(20, headers=True), per_frame=7)
        path = model.seal().path
        content = bytearray(Path(path).read_bytes())
        # The header's padding is the only unchecked part of the file.
        at = data.draw(st.integers(0, 39) | st.integers(64, len(content) - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 7))
        Path(path).write_bytes(content)
        with pytest.raises(BadSegment) as error:
            decoded(path)
        assert path in str(error.value)


def test_a_cut_segment_is_refused(tmp_path: Path) -> None:
    model = StreamModel(tmp_path)
    model.publish(flights(20))
    path = model.seal().path
    content = Path(path).read_bytes()
    for length in (0, 10, 64, len(content) // 2, len(content) - 1):
        Path(path).write_bytes(content[:length])
        with pytest.raises(BadSegment):
            decoded(path)
        with pytest.raises(BadSegment):
            staging.footer(path)


def test_tables_that_miss_a_record_are_refused(tmp_path: Path) -> None:
    """A footer whose tables omit a record is refused, since rows are found by those tables."""
    model = StreamModel(tmp_path)
    model.publish(flights(20))
    tables = model.log.open_segment.tables
    assert tables is not None
    tables.lengths[7] = 0
    with pytest.raises(BadSegment, match="19 messages, the frames hold 20"):
        decoded(model.seal().path)


def test_subjects_that_cannot_be_partitions_are_reported(tmp_path: Path) -> None:
    for subject, fits in ((b"a" * 200, True), (b"%" * 100, False), (b"__HIVE_DEFAULT_PARTITION__", False)):
        directory = tmp_path / "log"
        model = StreamModel(directory)
        stored = model.publish([(subject, b"", b"")])
        path = model.seal().path
        assert decoded(path) == stored
        if fits:
            assert decoded(path, as_partitions=True) == stored
        else:
            with pytest.raises(UnfitSubject):
                decoded(path, as_partitions=True)
        shutil.rmtree(directory)
