"""Tests of a read's filters: what is pushed into table and segments equals the same conditions applied to each row."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestream.lake.table.schema import Layout
from lakestream.protocol.subjects import matches
from lakestream_client import BadFilter
from lakestream_client.lake.view import open_view
from lakestream_client.messages import ALL_COLUMNS, COLUMNS, checked_columns
from lakestream_client.scan import CheckedFilters, Filters, of_lake
from tests.lake.model import T0, StreamModel
from tests.unit.lake.read.test_live import Table

pytestmark = pytest.mark.unit

SUBJECTS = [
    "o.de",
    "o.de.x",
    "o.fr.x",
    "o.fr.y",
    "o.f",
    "o.",
    "it's",
    "o-de",
    "o/de",
    "ö.ü.%",
    "o.de.x.y",
    "O.DE",
    "a.*",
]
PATTERNS = [
    *(subject for subject in SUBJECTS if not subject.endswith(".")),
    "o.*",
    "o.>",
    ">",
    "*",
    "o.*.x",
    "*.de",
    "*.*.>",
    "ö.>",
    "ö.*.%",
    "*.fr.>",
    "o.de.>",
    "z.>",
]
COUNT = 400


def row_fits(row: dict[str, Any], filters: Filters) -> bool:
    """Return True if all filters hold for a row, by the rules of NATS and of Python."""
    subject = filters.get("subject")
    patterns = [subject] if isinstance(subject, str) else subject
    if patterns is not None and not any(matches(each.encode(), row["subject"].encode()) for each in patterns):
        return False
    if not filters.get("first_seq", 0) <= row["seq"] <= filters.get("last_seq", 1 << 62):
        return False
    start, end = filters.get("start", 0), filters.get("end", 1 << 62)
    assert isinstance(start, int)
    assert isinstance(end, int)
    return start <= row["time_ns"] <= end and all(
        holds(row[column], *rest) for column, *rest in filters.get("where", ())
    )


def holds(value: Any, operator: str, other: Any) -> bool:
    return bool(
        {
            "=": lambda: value == other,
            "==": lambda: value == other,
            "!=": lambda: value != other,
            "<": lambda: value < other,
            "<=": lambda: value <= other,
            ">": lambda: value > other,
            ">=": lambda: value >= other,
            "in": lambda: value in other,
            "not in": lambda: value not in other,
        }[operator]()
    )


def some_filters(dice: random.Random, subjects: list[str], times: list[int]) -> Filters:
    """Return a random choice of filters."""
    filters = Filters()
    if dice.random() < 0.6:
        filters["subject"] = dice.choice(PATTERNS) if dice.random() < 0.7 else dice.sample(PATTERNS, dice.randrange(4))
    if dice.random() < 0.4:
        filters["first_seq"] = dice.randrange(-2, COUNT + 9)
    if dice.random() < 0.4:
        filters["last_seq"] = dice.randrange(COUNT + 9)
    if dice.random() < 0.3:
        filters["start"] = dice.choice(times) + dice.randrange(-1, 2)
    if dice.random() < 0.3:
        filters["end"] = dice.choice(times) + dice.randrange(-1, 2)
    where: list[tuple[str, str, Any]] = []
    while dice.random() < 0.4:
        column = dice.choice(["subject", "seq", "time_ns"])
        operator = dice.choice(["=", "==", "!=", "<", "<=", ">", ">="])
        values: list[Any] = {"subject": subjects, "seq": list(range(COUNT)), "time_ns": times}[column]
        if dice.random() < 0.3:
            where.append((column, dice.choice(["in", "not in"]), dice.sample(values, dice.randrange(4))))
        else:
            where.append((column, operator, dice.choice(values)))
    if where:
        filters["where"] = where
    return filters


@pytest.mark.parametrize("layout", [Layout("subject"), Layout("bucket", bounds=("o.", "o.f"))], ids=lambda it: it.kind)
def test_pushed_filters_equal_filters_of_rows(tmp_path: Path, layout: Layout) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    dice = random.Random(7)
    model = StreamModel(tmp_path / "log")
    table = Table(lake, model, layout)
    usable = [subject for subject in SUBJECTS if not subject.endswith(".")]
    for number in range(4):
        model.publish([(dice.choice(usable).encode(), b"", b"%d" % n) for n in range(COUNT // 4)])
        model.remove([seq for seq in model.live if seq % 30 == number])
        model.stage(lake)
        if number == 1:
            table.commit()
    view = open_view(str(lake), "ORDERS", flush=False)
    assert view.version is not None
    assert view.parts
    rows = of_lake(view, CheckedFilters.of(ALL_COLUMNS, {})).read_all().to_pylist()
    assert sorted(row["seq"] for row in rows) == sorted(model.live)
    times, hit = [row["time_ns"] for row in rows], 0
    for _ in range(150):
        filters = some_filters(dice, usable, times)
        columns = dice.sample(COLUMNS, dice.randrange(1, 6))
        found = of_lake(
            view, CheckedFilters.of(checked_columns(["seq", *(name for name in columns if name != "seq")]), filters)
        )
        wanted = {row["seq"]: row for row in rows if row_fits(row, filters)}
        got = found.read_all().to_pylist()
        assert {row["seq"] for row in got} == set(wanted), filters
        assert len(got) == len(wanted)
        assert all(wanted[row["seq"]] | row == wanted[row["seq"]] for row in got)
        hit += bool(wanted)
    assert hit > 40, "most filters find something"


@pytest.mark.parametrize(
    "filters",
    [
        {"where": [("seq", "in", range(7, 100_000, 3))]},
        {"where": [("seq", "not in", range(50_000))]},
        {"where": [("subject", "in", [f"o.{n}" for n in range(0, 50_000, 2)])]},
        {"where": [("seq", "!=", n) for n in range(0, 3000, 2)]},
        {"subject": [f"o.{n}" for n in range(5, 20_000)]},
        {"subject": [f"o.{n}.*" for n in range(300)] + ["o.7", "*.8"]},
    ],
    ids=lambda filters: f"{next(iter(filters))} {str(next(iter(filters.values())))[:20]}",
)
def test_filters_of_many_values(tmp_path: Path, filters: Filters) -> None:
    """The query engine would not survive them as they are."""
    lake = tmp_path / "lake"
    lake.mkdir()
    model = StreamModel(tmp_path / "log")
    table = Table(lake, model)
    for number in range(2):
        model.publish([(b"o.%d" % (n % 20), b"", b"%d %d" % (number, n)) for n in range(60)])
        model.stage(lake)
        if number == 0:
            table.commit()
    view = open_view(str(lake), "ORDERS", flush=False)
    rows = of_lake(view, CheckedFilters.of(COLUMNS, {})).read_all().to_pylist()
    wanted = sorted(row["data"] for row in rows if row_fits(row, filters))
    assert wanted or "where" in filters
    assert sorted(of_lake(view, CheckedFilters.of(("data",), filters)).read_all().column("data").to_pylist()) == wanted


@pytest.mark.parametrize(
    ("filters", "named"),
    [
        ({"subjects": "a"}, "subjects"),
        ({"subject": "a..b"}, "filter such as"),
        ({"subject": ["a", 1]}, "filter such as"),
        ({"where": [("data", "=", b"")]}, "column of subject, seq, time_ns"),
        ({"where": [("seq", "LIKE", 1)]}, "operator of ="),
        ({"where": [("seq", "=", "1")]}, "type int"),
        ({"where": [("seq", "=", 1 << 64)]}, "64 bits"),
        ({"where": [("seq", "=", True)]}, "type int"),
        ({"where": ["seq = 1"]}, "not a comparison"),
        ({"first_seq": "1"}, "type int"),
        ({"start": "yesterday"}, "start='yesterday'"),
        ({"as_of": "now", "source": "auto"}, "as_of='now'"),
        ({"as_of": T0, "source": "nats"}, "reads the lake"),
        ({"source": "kafka"}, "auto, lake or nats"),
        ({"batch_size": 0}, "number of rows"),
    ],
)
def test_a_filter_that_means_nothing_is_refused(filters: Any, named: str) -> None:
    with pytest.raises(BadFilter, match=named.replace("(", r"\(")):
        CheckedFilters.of(COLUMNS, filters)


@pytest.mark.parametrize("columns", [["nope"], ["seq", "seq"], "seq"])
def test_columns_that_do_not_exist_are_refused(columns: Any) -> None:
    with pytest.raises(BadFilter, match="the columns are subject, seq"):
        checked_columns(columns)


def test_batches_have_at_most_the_asked_number_of_rows(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    model = StreamModel(tmp_path / "log")
    model.publish([(b"a", b"", b"") for _ in range(100)])
    model.stage(lake)
    reader = of_lake(open_view(str(lake), "ORDERS", flush=False), CheckedFilters.of(("seq",), {"batch_size": 30}))
    assert isinstance(reader, pa.RecordBatchReader)
    assert [batch.num_rows for batch in reader] == [30, 30, 30, 10]


def test_a_scan_holds_a_part_of_the_stream_only(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    model = StreamModel(tmp_path / "log")
    table = Table(lake, model)
    for number in range(8):
        model.publish([(b"a", b"", b"x" * 500) for _ in range(5000)])
        model.stage(lake)
        if number == 3:
            table.commit()
    view = open_view(str(lake), "ORDERS", flush=False)
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for batch in of_lake(view, CheckedFilters.of(COLUMNS, {"batch_size": 1000})):
        rows += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 40_000
    assert most < rows * 500 / 3, "of 20 MB"
