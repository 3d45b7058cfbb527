"""Tests of mirrors' tables that begin as clones: made by the compactor, maintained, and independent in the end."""

from __future__ import annotations

import argparse
import importlib.util
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from lakestream.lake.errors import TableBusy
from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.staging import clone_request, scan, staging
from lakestream.lake.staging.clone_request import CloneAnswer, CloneRequest, SubjectSelection
from lakestream.lake.staging.staging import StagedStream
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table import erasures
from lakestream.lake.table.at import as_of
from lakestream.lake.table.log import TableLog
from lakestream.lake.table.state import position_of
from lakestream.log.format.record import Record
from lakestream_spark.write import clone_maker as clone_making
from lakestream_spark.write import detach
from lakestream_spark.write import maintainer as maintainer_module
from lakestream_spark.write import stream_compaction as compaction
from lakestream_spark.write.clone_maker import CloneMaker
from lakestream_spark.write.clones import References
from lakestream_spark.write.commit import Commit
from lakestream_spark.write.compactor import Compactor
from lakestream_spark.write.detach import DetachResult, DetachStopped
from lakestream_spark.write.maintainer import Maintainer
from lakestream_spark.write.stream_compaction import StreamCompaction
from lakestream_sql.session import Session
from tests.lake.conftest import job
from tests.lake.model import T0, StreamModel, flights
from tests.lake.tables import ALL, records
from tests.lake.test_erasure import WEEK
from tests.lake.test_maintenance import NOW, check, compact, grow

pytestmark = pytest.mark.lake

SOON_S = 120.0
"""Timeout in seconds for work of other threads, on a busy machine."""


class MirrorModel(StreamModel):
    """Mirror's log, whose first messages came with its table."""

    def __init__(self, directory: Path, name: str = "MIRROR", uid: str = "UID2") -> None:
        super().__init__(directory, name, uid)
        self.identity = msgspec.structs.replace(self.identity, created_ns=T0 + 1)

    def begin(self, held: list[Record], last_seq: int) -> None:
        """Continue after the messages that the origin held."""
        self.live = {record.seq: record for record in held}
        self.floor = min(self.live, default=last_seq + 1)
        self.next_seq = last_seq + 1
        self.sealed_live = dict(self.live)


def ask(lake: Path, mirror: StreamModel, origin: StreamModel, **more: Any) -> None:
    name, uid = origin.identity.name, origin.identity.uid
    clone_request.request(str(lake), mirror.identity, CloneRequest(origin=name, origin_uid=uid, **more))


def staged(lake: Path, model: StreamModel) -> StagedStream:
    (found,) = [each for each in scan.Scanner(str(lake)).scan() if each.identity.uid == model.identity.uid]
    return found


def make(spark: Any, lake: Path, mirror: StreamModel, origin: StreamModel, **more: Any) -> CloneAnswer:
    ask(lake, mirror, origin, **more)
    answer = CloneMaker(spark, str(lake), staged(lake, mirror)).run()
    assert answer is not None
    assert clone_request.answer(str(lake), mirror.identity) == answer
    return answer


def new_bytes(table: str) -> int:
    return sum(path.stat().st_size for path in Path(table).rglob("*.parquet") if "_delta_log" not in path.parts)


@pytest.fixture
def origin(spark: Any, lake: Path, tmp_path: Path) -> StreamModel:
    """Return a stream whose table has deletion vectors, files of several commits, and unusual subjects."""
    model = StreamModel(tmp_path / "origin")
    grow(spark, lake, model, 1)
    model.remove([3, 4, 50])
    grow(spark, lake, model, 1)
    return model


@pytest.fixture
def mirror(tmp_path: Path) -> MirrorModel:
    return MirrorModel(tmp_path / "mirror")


def test_a_clone_has_the_rows_and_none_of_the_bytes(
    spark: Any, lake: Path, origin: StreamModel, mirror: MirrorModel
) -> None:
    """A clone has the origin's rows without copies of the files; the mirror's segments then follow, with deletes."""
    answer = make(spark, lake, mirror, origin)
    assert (answer.state, answer.copied, answer.messages) == ("made", False, 117)
    assert (answer.first_row_seq, answer.last_row_seq, answer.last_seq, answer.floor) == (1, 120, 120, 1)
    table = mirror.table(lake)
    assert new_bytes(table) == 0
    assert position_of(table, "UID2") == 1
    then = as_of(table, T0 + 50 * 1_000_003)
    assert (then.version, then.complete) == (answer.version, True), "a moment within what came with the clone"
    mirror.begin(origin.expected(), answer.last_seq)
    assert records(table) == mirror.expected()
    assert TableHistory(table).read(1, ALL, 1_000_000) == mirror.expected()
    clone_request.settle(str(lake), mirror.identity)
    mirror.publish([(b"plain", b"", b"own %d" % n) for n in range(50)])
    mirror.remove([10, 11, 130])
    mirror.stage(lake)
    compact(spark, lake, mirror)
    check(lake, mirror)
    check(lake, origin)
    maintain_both(spark, lake)
    check(lake, mirror)
    check(lake, origin)


def maintain_both(spark: Any, lake: Path) -> None:
    done = Maintainer(spark, str(lake), NOW).once()
    assert [each.failure for each in done] == [None] * len(done)


def test_only_matching_rows_are_copied_under_their_new_subjects(
    spark: Any, lake: Path, tmp_path: Path, mirror: MirrorModel
) -> None:
    origin = StreamModel(tmp_path / "origin")
    origin.publish([(b"a.%d.x" % (n % 3), b"", b"%d" % n) for n in range(30)])
    origin.publish([(b"b.\xff", b"", b"raw"), (b"b.plain", b"NATS/1.0\r\nA: 1\r\n\r\n", b"headers")])
    origin.remove([5])
    origin.stage(lake)
    compact(spark, lake, origin)
    answer = make(
        spark,
        lake,
        mirror,
        origin,
        selections=[SubjectSelection("a.1.*", "one.{{wildcard(1)}}"), SubjectSelection("b.>")],
        start_seq=3,
    )
    named = {b"a.1.x": b"one.x", b"b.\xff": b"b.\xff", b"b.plain": b"b.plain"}
    held = [
        msgspec.structs.replace(record, subject=named[record.subject])
        for record in origin.expected()
        if record.subject in named and record.seq >= 3
    ]
    mirror.begin(held, answer.last_seq)
    assert (answer.copied, answer.messages, answer.last_seq) == (True, len(held), 32)
    assert records(mirror.table(lake)) == mirror.expected()
    assert position_of(mirror.table(lake), "UID2") == 1
    clone_request.settle(str(lake), mirror.identity)
    mirror.publish([(b"one.y", b"", b"own")])
    mirror.stage(lake)
    compact(spark, lake, mirror)
    check(lake, mirror, copied=True)


def test_a_request_that_cannot_be_met_is_refused_and_one_that_is_early_waits(
    spark: Any, lake: Path, origin: StreamModel, mirror: MirrorModel, tmp_path: Path
) -> None:
    refused = make(spark, lake, mirror, StreamModel(tmp_path / "none", "NONE", "UID9"))
    assert (refused.state, "no _delta_log" in refused.reason) == ("refused", True)
    clone_request.settle(str(lake), mirror.identity)
    late = make(spark, lake, mirror, origin, as_of_ns=T0)
    assert (late.state, "held nothing" in late.reason) == ("refused", True)
    clone_request.settle(str(lake), mirror.identity)
    ask(lake, mirror, origin, through=origin.log.last_index + 1)
    maker = CloneMaker(spark, str(lake), staged(lake, mirror))
    assert maker.run() is None
    origin.publish(flights(3))
    origin.stage(lake)
    compact(spark, lake, origin)
    answer = maker.run()
    assert answer is not None
    assert answer.messages == 120


def test_a_mirror_is_the_origin_as_it_was(
    spark: Any, lake: Path, origin: StreamModel, mirror: MirrorModel, tmp_path: Path
) -> None:
    """A mirror shows the origin's past state by sequence and by time, although the same files have later rows."""
    answer = make(spark, lake, mirror, origin, as_of_seq=100)
    before = [record for record in origin.expected() if record.seq <= 100]
    held = {record.seq: record for record in records(mirror.table(lake))}
    assert [held[record.seq] for record in before] == before
    assert set(held) - {record.seq for record in before} <= {3, 4, 50}, "what that version still had"
    assert (answer.last_seq, answer.last_row_seq) == (100, 100)
    other = MirrorModel(tmp_path / "other", "OTHER", "UID3")
    at_ns = T0 + 110 * 1_000_003
    answer = make(spark, lake, other, origin, as_of_ns=at_ns)
    assert answer.last_seq == 110
    assert [record for record in records(other.table(lake)) if record.seq > 60] == [
        record for record in origin.expected() if 60 < record.seq <= 110
    ]
    check(lake, origin)
    then_ns = time.time_ns()
    before_purge = origin.expected()
    origin.purge(115)
    origin.stage(lake)
    compact(spark, lake, origin)
    past = MirrorModel(tmp_path / "past", "PAST", "UID4")
    make(spark, lake, past, origin, as_of_ns=then_ns, through=origin.sealed[-1].last_index)
    assert records(past.table(lake)) == before_purge, "a purge since then, and no message"


def test_a_kill_anywhere_begins_anew_or_finds_the_answer(
    spark: Any, lake: Path, origin: StreamModel, mirror: MirrorModel
) -> None:
    class Killed(Exception):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    ask(lake, mirror, origin)
    maker = CloneMaker(spark, str(lake), staged(lake, mirror))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CloneMaker, "_adopt", killed)
        with pytest.raises(Killed):
            maker.run()
    table = mirror.table(lake)
    assert position_of(table, "UID2") is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clone_request, "decide", killed)
        with pytest.raises(Killed):
            maker.run()
    version = TableLog(open_storage(lake), table).commits[-1]
    answer = maker.run()
    assert answer is not None
    assert answer.version == version == TableLog(open_storage(lake), table).commits[-1]
    assert records(table) == origin.expected()
    mirror.stage(lake)
    compact(spark, lake, mirror)
    assert position_of(table, "UID2") == mirror.sealed[-1].last_index
    clone_request.discard(str(lake), mirror.identity)
    mirror.publish(flights(5))
    mirror.stage(lake)
    compact(spark, lake, mirror)
    assert records(table) == origin.expected(), "segments wait"
    maker.run()
    compact(spark, lake, mirror)
    check(lake, mirror)


def test_a_mirror_that_is_deleted_while_its_table_is_made_leaves_none(
    spark: Any, lake: Path, origin: StreamModel, mirror: MirrorModel
) -> None:
    ask(lake, mirror, origin)
    stream = staged(lake, mirror)
    adopt = CloneMaker._adopt

    def late(self: CloneMaker, *given: Any) -> CloneAnswer:
        staging.mark_deleted(str(lake), mirror.identity)
        with pytest.raises(TableBusy):
            StreamCompaction(spark, str(lake), stream).drop_table()
        return adopt(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "BUSY_SECONDS", 0.1)
        patch.setattr(CloneMaker, "_adopt", late)
        CloneMaker(spark, str(lake), stream).run()
    assert StreamCompaction(spark, str(lake), stream).drop_table()
    assert not Path(mirror.table(lake)).exists()
    assert CloneMaker(spark, str(lake), stream).run() is None


def test_what_was_withdrawn_goes_before_a_segment_comes(
    spark: Any, lake: Path, origin: StreamModel, mirror: MirrorModel
) -> None:
    ask(lake, mirror, origin)
    mirror.publish(flights(5))
    mirror.stage(lake)
    with pytest.MonkeyPatch.context() as patch:
        adopt = CloneMaker._adopt

        def late(self: CloneMaker, *given: Any) -> CloneAnswer:
            made = adopt(self, *given)
            assert clone_request.withdraw(str(lake), mirror.identity).state == "withdrawn"
            return made

        patch.setattr(clone_making.CloneMaker, "_adopt", late)
        compact(spark, lake, mirror)
        assert position_of(mirror.table(lake), "UID2") is None, "segments wait"
        CloneMaker(spark, str(lake), staged(lake, mirror)).run()
    assert not clone_request.has_request(str(lake), mirror.identity)
    compact(spark, lake, mirror)
    check(lake, mirror)


@pytest.fixture
def cloned(spark: Any, lake: Path, origin: StreamModel, mirror: MirrorModel) -> MirrorModel:
    """Return a mirror whose table refers to the origin's files, and has some of its own."""
    answer = make(spark, lake, mirror, origin)
    clone_request.settle(str(lake), mirror.identity)
    mirror.begin(origin.expected(), answer.last_seq)
    mirror.publish([(b"plain", b"", b"own %d" % n) for n in range(20)])
    mirror.remove([10, 125])
    mirror.stage(lake)
    compact(spark, lake, mirror)
    return mirror


def compactor(spark: Any, lake: Path, lines: list[str]) -> Compactor:
    running = Compactor(spark, str(lake), tell=lines.append, complain=lines.append)
    assert running.acquire()
    return running


def test_reads_go_on_after_the_origin_is_deleted_and_everything_is_vacuumed(
    spark: Any, lake: Path, origin: StreamModel, cloned: MirrorModel
) -> None:
    """Clones stay readable after their origin was deleted and everything was vacuumed.

    The origin's table is removed although the lake has a maintainer that waits for its next round.
    """
    rounds = importlib.util.spec_from_file_location("maintain", job().with_name("maintain.py"))
    assert rounds is not None
    assert rounds.loader is not None
    program = importlib.util.module_from_spec(rounds)
    rounds.loader.exec_module(program)
    maintainer = Maintainer(spark, str(lake), NOW)
    assert maintainer.acquire()
    stop, options = threading.Event(), argparse.Namespace(once=False, stream=None, every=1000.0, json=False)
    resting = threading.Thread(target=program._rounds, args=(maintainer, options, str(lake), stop))
    resting.start()
    staging.mark_deleted(str(lake), origin.identity)
    lines: list[str] = []
    running = compactor(spark, lake, lines)
    try:
        until = time.monotonic() + SOON_S
        while time.monotonic() < until and Path(origin.table(lake)).exists():
            running.once()
            running._work.clones.wait()
        assert not Path(origin.table(lake)).exists(), lines
        assert lines[-1].startswith("detached 1 clones"), lines
        maintain_both(spark, lake)
        check(lake, cloned)
        assert not References(open_storage(lake)).by_clone(origin.table(lake))
        cloned.publish(flights(5))
        cloned.stage(lake)
        running.once()
        check(lake, cloned)
    finally:
        stop.set()
        resting.join()
        running.stop()
        running.release()


def test_detaching_that_is_killed_goes_on_where_it_was(
    spark: Any, lake: Path, origin: StreamModel, cloned: MirrorModel
) -> None:
    table = cloned.table(lake)
    seen: list[DetachResult] = []
    before = TableLog(open_storage(lake), table).commits[-1]
    stopped = Maintainer(spark, str(lake), stopping=lambda: len(seen) >= 2)
    with pytest.raises(DetachStopped):
        stopped.detach(table, report=seen.append)
    brought = set(Path(table, detach.DIRECTORY).iterdir())
    assert brought
    assert TableLog(open_storage(lake), table).commits[-1] == before
    check(lake, cloned)
    changed = {path: path.stat().st_ino for path in brought}

    class Killed(Exception):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    places: list[tuple[object, str]] = [(Commit, "run"), (maintainer_module, "expire")]
    for owner, name in places:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, killed)
            with pytest.raises(Killed):
                Maintainer(spark, str(lake)).detach(table, report=seen.append)
    done = seen[-1]
    assert Maintainer(spark, str(lake)).detach(table) is not None
    assert done.files == done.of >= len(brought)
    assert {path: path.stat().st_ino for path in brought} == changed
    check(lake, cloned)
    assert position_of(table, "UID2") == cloned.sealed[-1].last_index
    maintain_both(spark, lake)
    open_storage(lake).delete_tree(origin.table(lake))
    check(lake, cloned)
    assert Maintainer(spark, str(lake)).detach(table) is None
    with Session(str(lake), committed=True) as session:
        assert list(session.query("SELECT count(*) FROM delta.`streams/MIRROR`")) == [(len(cloned.expected()),)]


def test_a_secure_delete_in_the_origin_leaves_its_clone_whole(
    spark: Any, lake: Path, origin: StreamModel, cloned: MirrorModel
) -> None:
    """A secure delete in the origin rewrites the clone's shared file as its own.

    The mirror still has message 20: it gets the file as its own, and the origin's loses the message. The mirror has
    removed message 10: the file that it got loses that as well.
    """
    with Session(str(lake), committed=True) as session:
        assert list(session.query("SELECT count(*) FROM delta.`streams/MIRROR`")) == [(len(cloned.expected()),)]
    cloned.publish([(b"plain", b"", b"on its way")])
    on_its_way = cloned.next_seq - 1
    while origin.next_seq <= on_its_way:
        origin.publish(flights(10))
    origin.stage(lake)
    compact(spark, lake, origin)
    origin.remove([10, 20, on_its_way], shred=True)
    origin.publish(flights(3))
    origin.stage(lake)
    compact(spark, lake, origin)
    done = {each.stream: each for each in Maintainer(spark, str(lake), WEEK).once()}
    assert (done["ORDERS"].failure, done["ORDERS"].plan.erase) == (None, 3)
    table = origin.table(lake)
    assert not erasures.notes(open_storage(lake), table)
    assert not [path for path in data_files(table) if {10, 20} & seqs(path)]
    check(lake, origin)
    cloned.stage(lake)
    compact(spark, lake, cloned)
    check(lake, cloned)
    assert [path for path in data_files(cloned.table(lake)) if 20 in seqs(path)]
    done = {each.stream: each for each in Maintainer(spark, str(lake), WEEK).once()}
    assert (done["MIRROR"].failure, done["MIRROR"].plan.erase) == (None, 1)
    assert not [path for path in data_files(cloned.table(lake)) if 10 in seqs(path)]
    assert [path for path in data_files(cloned.table(lake)) if 20 in seqs(path)]
    check(lake, cloned)


def data_files(table: str) -> list[Path]:
    return [path for path in Path(table).rglob("*.parquet") if "_delta_log" not in path.parts]


def seqs(path: Path) -> set[int]:
    return set(pq.read_table(path, columns=["seq"], partitioning=None).column(0).to_pylist())


def test_a_clone_of_a_clone_and_a_table_that_is_being_made_keep_their_files(
    spark: Any, lake: Path, origin: StreamModel, cloned: MirrorModel, tmp_path: Path
) -> None:
    second = MirrorModel(tmp_path / "second", "SECOND", "UID3")
    make(spark, lake, second, cloned)
    held = cloned.expected()
    cloned.remove(range(1, 60))
    cloned.publish(flights(5))
    cloned.stage(lake)
    compact(spark, lake, cloned)
    late = MirrorModel(tmp_path / "late", "LATE", "UID4")
    ask(lake, late, cloned, as_of_seq=130)

    class Killed(Exception):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    storage, table = open_storage(lake), cloned.table(lake)
    with pytest.MonkeyPatch.context() as patch:
        maker = CloneMaker(spark, str(lake), staged(lake, late))
        patch.setattr(maker._spark, "sql", killed)
        with pytest.raises(Killed):
            maker.run()
    named = References(storage).by_clone(origin.table(lake))
    assert set(named) >= {table, second.table(lake), late.table(lake)}
    maintain_both(spark, lake)
    maintain_both(spark, lake)
    assert records(second.table(lake)) == held
    answer = maker.run()
    assert answer is not None
    assert answer.state == "made"
    assert {record.seq for record in records(late.table(lake))} >= {record.seq for record in held if record.seq <= 130}
