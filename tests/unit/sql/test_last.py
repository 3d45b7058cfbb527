"""Tests of last(ORDERS) and kv.x by the index of a server, against the last messages of a model."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from lakestream.lake.last_messages import LastPage
from lakestream.protocol.subjects import matches
from lakestream_sql import last
from lakestream_sql.parser import SqlParser
from lakestream_sql.session import BadSql, Session
from lakestream_sql.statements import parse
from lakestream_sql.uncompacted import LastWanted, index_of
from tests.unit.sql.test_sql_live import Lake

pytestmark = pytest.mark.unit

SUBJECTS = [f"{kind}.{number}" for kind in ("eu", "us") for number in range(4)]
ALL = LastWanted("ORDERS", ())


def newest(lake: Lake, *, sealed: bool = False, pattern: str = ">") -> dict[str, int]:
    """Return the last sequence of each subject in the model."""
    records = (lake.model.sealed_live if sealed else lake.model.live).values()
    return {
        record.subject.decode(): record.seq
        for record in sorted(records, key=lambda record: record.seq)
        if matches(pattern.encode(), record.subject)
    }


def page(lake: Lake, found: dict[str, int], *, done: bool = False) -> LastPage:
    """Return the page of an answer that a server makes now."""
    names = [name.encode() for name in found]
    seqs, lengths = array("q", found.values()), array("I", map(len, names))
    index = lake.model.log.last_index
    return LastPage("UID1", index, seqs.tobytes(), lengths.tobytes(), b"".join(names), done)


def pages(lake: Lake, pattern: str = ">") -> list[LastPage]:
    """Return a whole answer."""
    return [page(lake, newest(lake, pattern=pattern), done=True)]


def rows(session: Session, source: str = "last(ORDERS)") -> dict[str, int]:
    found = session.query(f"SELECT subject, seq FROM {source}").fetchall()
    assert len(found) == len(dict(found)), "a subject has one last message"
    return dict(found)


def publish(lake: Lake, *subjects: str) -> None:
    lake.model.publish([(subject.encode(), b"", b'{"of": "%s"}' % subject.encode()) for subject in subjects])


def stage(lake: Lake) -> None:
    """Stage what there is, and the entry of some operation."""
    lake.model.operation()
    lake.stage()


class Trials:
    """A stream to which random things happen."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake, self.choose = lake, random.Random(seed)
        self.committed, self.is_stale = 0, False

    def happen(self, times: int) -> None:
        """Publish, remove, purge and stage."""
        model = self.lake.model
        for _ in range(times):
            kind = self.choose.choice(["publish", "publish", "remove", "purge", "stage"])
            if kind == "publish":
                publish(self.lake, *self.choose.choices(SUBJECTS, k=self.choose.randint(1, 5)))
            elif kind == "stage":
                stage(self.lake)
            elif model.live:
                last = max(model.live)
                gone = self.choose.sample(sorted(newest(self.lake).values()), 1)  # else nobody would notice
                if kind == "purge":
                    model.purge(min(min(model.live) + 2, last))
                    gone = [0]
                else:
                    model.remove(gone, erase=self.choose.random() < 0.5)
                self.is_stale |= min(gone) <= self.committed

    def commit(self) -> None:
        """Move everything into the table, if that needs no deletes."""
        stage(self.lake)
        if not self.is_stale and any(seq > self.committed for seq in self.lake.model.sealed_live):
            self.lake.commit()
            self.committed = self.lake.model.next_seq - 1


@pytest.mark.parametrize("seed", range(8))
def test_an_index_leads_to_the_last_messages_of_the_view_whatever_happens_meanwhile(tmp_path: Path, seed: int) -> None:
    """Pages made at different moments, a view opened later: the answer is that of the view, exactly."""
    lake = Lake(tmp_path)
    trials = Trials(lake, seed)
    publish(lake, *SUBJECTS)
    with Session(lake.root) as session:
        for _ in range(4):
            trials.happen(4)
            trials.commit()
            trials.happen(3)
            some = set(trials.choose.sample(SUBJECTS, 4))
            first = page(lake, {name: seq for name, seq in newest(lake).items() if name in some})
            trials.happen(2)
            others = page(lake, {name: seq for name, seq in newest(lake).items() if name not in some}, done=True)
            trials.happen(2)
            if trials.choose.random() < 0.3:  # the compactor overtakes the index
                trials.commit()
            stage(lake)
            session.take_last({ALL: [first, others]})
            assert rows(session) == newest(lake, sealed=True)
            session.take_last({})
            assert rows(session) == newest(lake, sealed=True), "the table is searched"
            wanted = LastWanted("ORDERS", ("eu.*",))
            session.take_last({wanted: pages(lake, "eu.*")})
            assert rows(session, "last(ORDERS, 'eu.*')") == newest(lake, sealed=True, pattern="eu.*")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A stream with eight subjects in the table, two of which have newer messages beyond it."""
    lake = Lake(tmp_path)
    publish(lake, *SUBJECTS, *SUBJECTS)
    stage(lake)
    lake.commit()
    publish(lake, "eu.1", "us.1")
    stage(lake)
    return lake


def used(session: Session, lake: Lake, monkeypatch: pytest.MonkeyPatch, given: list[LastPage]) -> bool:
    """Return True if the answer of a server serves."""
    found = list[bool]()
    by_index = last.by_index

    def look(*arguments: object) -> object:
        answer = by_index(*arguments)  # type: ignore[arg-type]
        found.append(answer is not None)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(last, "by_index", look)
        session.take_last({ALL: given})
        assert rows(session) == newest(lake, sealed=True)
    return found == [True]


def test_an_index_serves_only_views_of_its_stream_that_are_opened_behind_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = pages(lake)
    with Session(lake.root) as session:
        assert used(session, lake, monkeypatch, [whole])
        assert not used(session, lake, monkeypatch, [msgspec.structs.replace(whole, uid="UID2")])
        assert not used(session, lake, monkeypatch, [msgspec.structs.replace(whole, applied=whole.applied + 1)])
        assert not used(session, lake, monkeypatch, [msgspec.structs.replace(whole, done=False)])
        assert not used(session, lake, monkeypatch, [LastPage(error="no answer", done=True)])
        lake.commit()  # beyond the entry as of which the answer began
        assert not used(session, lake, monkeypatch, [msgspec.structs.replace(whole, applied=whole.applied - 1), whole])


def test_only_what_the_index_names_is_read_of_the_table(lake: Lake) -> None:
    with Session(lake.root) as session:
        session.take_last({ALL: pages(lake)})
        plan = str(session.query("EXPLAIN SELECT * FROM last(ORDERS)").fetchall())
    assert "MAX" not in plan.upper(), "nothing is searched"


def test_a_deleted_last_message_gives_way_to_the_one_before(lake: Lake) -> None:
    answer = pages(lake)
    gone = newest(lake)["us.3"]
    lake.model.remove([gone], erase=True)
    stage(lake)
    with Session(lake.root) as session:
        session.take_last({ALL: answer})
        assert rows(session)["us.3"] == gone - len(SUBJECTS)


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("FROM last(ORDERS)", ()),
        ("FROM last('ORDERS')", ()),
        ("FROM last(ORDERS, 'eu.*')", ("eu.*",)),
        ("FROM last(accounts.\"$G\".ORDERS) WHERE subject = 'eu.1'", ("eu.1",)),
        ("FROM LAST(delta.`streams/ORDERS`) l WHERE l.subject IN ('eu.1', 'eu.2') AND seq > 1", ("eu.1", "eu.2")),
        ("SELECT seq FROM last(ORDERS) WHERE subject LIKE 'eu.1%' AND seq > 1", ("eu.>",)),
        ("SELECT seq FROM last(ORDERS) WHERE subject LIKE 'e%'", ()),
        ("SELECT seq FROM last(ORDERS) WHERE starts_with(subject, 'eu.x_1.b')", ("eu.x_1.>",)),
        ("SELECT seq FROM last(ORDERS) WHERE subject LIKE 'eu.x_1.b'", ("eu.>",)),
        ("SELECT seq FROM last(ORDERS) WHERE subject = 'eu.1' OR seq > 1", ()),
        ("SELECT seq FROM last(ORDERS) WHERE subject = ''", ()),
        ("FROM kv.conf", ("$KV.>",)),
        ("SELECT value FROM kv.conf WHERE key = 'a.b'", ("$KV.*.a.b",)),
        ("SELECT value FROM kv.conf WHERE key IN ('a', 'b')", ("$KV.*.a", "$KV.*.b")),
        ("SELECT value FROM kv.conf c JOIN ORDERS o ON true WHERE key = 'a'", ("$KV.>",)),
    ],
)
def test_the_subjects_that_a_query_can_want_are_told_to_the_index(
    lake: Lake, text: str, filters: tuple[str, ...]
) -> None:
    with Session(lake.root) as session:
        (wanted,) = session.mentioned(text).last
    assert wanted.filters == filters


@pytest.mark.parametrize(
    "text", ["FROM ORDERS", "SELECT last(seq) FROM ORDERS", "FROM kv_history.conf", "FROM kv.conf VERSION AS OF 3"]
)
def test_other_queries_want_nothing_of_an_index(lake: Lake, text: str) -> None:
    with Session(lake.root) as session:
        assert session.mentioned(text).last == []


@pytest.mark.parametrize(
    "call", ["last()", "last(1)", "last(kv.conf)", "last(ORDERS, 'eu..x')", "last(ORDERS, 1)", "last(ORDERS, 'a', 'b')"]
)
def test_a_wrong_call_of_last_is_shown(lake: Lake, call: str) -> None:
    with Session(lake.root) as session, pytest.raises(BadSql, match=r"last takes a stream"):
        session.query(f"FROM {call}")


def test_last_has_the_columns_of_the_stream_and_its_own_name(lake: Lake) -> None:
    with Session(lake.root) as session:
        session.take_last({ALL: pages(lake)})
        found = session.query("SELECT last.subject, json->>'of' FROM last(ORDERS) ORDER BY ALL").fetchall()
        assert found == [(name, name) for name in sorted(SUBJECTS)]
        assert session.query("DESCRIBE FROM last(ORDERS)").fetchall() == session.query("DESCRIBE ORDERS").fetchall()
        again = session.query("SELECT count(*) FROM last(ORDERS) a JOIN last(ORDERS) b USING (seq)").fetchall()
        assert again == [(len(SUBJECTS),)]


def test_typed_columns_are_there_without_any_row_of_the_table(lake: Lake) -> None:
    table = DeltaTable(lake.model.table(lake.root))
    table.alter.add_columns([Field("schema", PrimitiveType("string")), Field("price", PrimitiveType("double"))])
    with Session(lake.root) as session:
        for name, subjects in (("none", []), ("eu.1", ["eu.1"])):
            wanted = LastWanted("ORDERS", (name,))
            session.take_last({wanted: pages(lake, name)})
            found = session.query(f"SELECT subject, price FROM last(ORDERS) WHERE subject = '{name}'").fetchall()
            assert found == [(subject, None) for subject in subjects]


def test_last_as_of_a_moment_is_searched_in_the_table(lake: Lake) -> None:
    first = {name: at for at, name in enumerate(SUBJECTS, 1)}
    with Session(lake.root) as session:
        assert rows(session, f"last(as_of(ORDERS, {lake.time(len(SUBJECTS))}))") == first
        assert rows(session, "last(ORDERS VERSION AS OF 1)") == {
            name: seq + len(SUBJECTS) for name, seq in first.items()
        }


def test_the_values_of_a_bucket_are_those_of_the_index(tmp_path: Path) -> None:
    """Deleted and purged keys have no value, by the index as by a search of the table."""
    lake = Lake(tmp_path)
    lake.model.identity = msgspec.structs.replace(lake.model.identity, name="KV_conf")
    delete, purge = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n", b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n"
    lake.model.publish([(b"$KV.conf.%b" % key, b"", key) for key in (b"a", b"b.c", b"gone", b"old")])
    stage(lake)
    lake.model.publish([(b"$KV.conf.gone", delete, b""), (b"$KV.conf.old", purge, b""), (b"$KV.conf.a", b"", b"2")])
    stage(lake)
    query = "SELECT key, value, revision FROM kv.conf ORDER BY key"
    wanted = [("a", b"2", 7), ("b.c", b"b.c", 2)]
    with Session(lake.root) as session:
        assert session.query(query).fetchall() == wanted
        session.take_last({LastWanted("KV_conf", ("$KV.>",)): pages(lake)})
        assert session.query(query).fetchall() == wanted
        for key, found in (("a", wanted[:1]), ("gone", []), ("none", [])):
            session.take_last({LastWanted("KV_conf", (f"$KV.*.{key}",)): pages(lake, f"$KV.conf.{key}")})
            one = query.replace("ORDER", f"WHERE key = '{key}' ORDER")
            assert session.query(one).fetchall() == found


def test_a_count_needs_no_column_and_is_exact_with_deletes(lake: Lake) -> None:
    """Rows are counted by the log, less those that were removed since, and more those beyond the table."""
    with Session(lake.root) as session:
        for gone in ([], [3], [1, 2, 17], [*range(4, 9)]):
            lake.model.remove(gone)
            stage(lake)
            total = len(lake.model.sealed_live)
            assert session.query("SELECT count(*) FROM ORDERS").fetchall() == [(total,)]
            assert session.query("SELECT count(*), count(subject) FROM ORDERS").fetchall() == [(total, total)]
            plan = str(session.query("EXPLAIN SELECT count(*) AS n FROM ORDERS").fetchall())
            assert "RANGE" in plan.upper()
            assert "DELTA" not in plan.upper()
        few = session.query("SELECT count(*) FROM ORDERS WHERE seq > 10").fetchall()
        assert few == [(sum(seq > 10 for seq in lake.model.sealed_live),)]


def test_columns_are_told_from_counts(lake: Lake) -> None:
    with Session(lake.root) as session:
        parser = SqlParser(session.engine.connection)
        for text, counted in {
            "SELECT count(*) FROM ORDERS": True,
            "SELECT count(*) + 1 AS n, 'x' FROM ORDERS": True,
            "SELECT count(*) FROM ORDERS, ORDERS o": False,
            "FROM ORDERS": False,
            "SELECT count(COLUMNS(*)) FROM ORDERS": False,
            "SELECT count(#1) FROM ORDERS": False,
            "SELECT count(ORDERS) FROM ORDERS": False,
            "SELECT count(*) FROM ORDERS HAVING max(seq) > 1": False,
            "SELECT count(*) FROM ORDERS GROUP BY subject": False,
            "SELECT (SELECT seq) FROM ORDERS": False,
        }.items():
            (statement,) = parse(text, parser)
            assert {mention.counted for mention in statement.mentions()} == {counted}, text


def test_an_index_that_is_not_whole_is_none(lake: Lake) -> None:
    (whole,) = pages(lake)
    assert index_of([]) is None
    assert index_of([msgspec.structs.replace(whole, done=False)]) is None
    assert index_of([whole, LastPage(error="more than 2 subjects", code=413, done=True)]) is None
    found = index_of([whole])
    assert found is not None
    assert dict(zip(found.subjects.to_pylist(), found.seqs.tolist(), strict=True)) == newest(lake)
