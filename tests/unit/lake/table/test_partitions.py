"""Tests of partition columns by time and fields: their grammar, their values, and the files that have them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakestream.lake.errors import BadPolicy, UnfitSubject
from lakestream.lake.table import policy
from lakestream.lake.table.policy import Partition
from lakestream.lake.table.schema import (
    FIELD_METADATA,
    NULL_PARTITION,
    SUBJECT_MOST,
    Layout,
    is_own,
    layout_of,
    message_schema,
)
from lakestream_client.lake import partitions
from lakestream_iceberg.schema import partition_fields
from lakestream_spark.write import layouts
from lakestream_spark.write.data_files import DataFiles, NewFile
from lakestream_spark.write.field_ids import field_id

pytestmark = pytest.mark.unit

KEY = policy.PARTITION_KEY
TYPED = {"lakestream.schema": "orders"}
HOUR_NS = 3_600_000_000_000
LAYOUT = Layout("fields", terms=("day", "$country"))


@pytest.mark.parametrize(
    ("text", "terms", "shown"),
    [
        ("day(time)", ("day",), "day(time)"),
        ("hour( time ),$.country", ("hour", "$country"), "hour(time), $.country"),
        ("$.a, $.b,day(time)", ("$a", "$b", "day"), "$.a, $.b, day(time)"),
        ("$.a.b.c, month( $.made.at )", ("$a.b.c", "$month(made.at)"), "$.a.b.c, month($.made.at)"),
    ],
)
def test_terms_are_times_and_fields(text: str, terms: tuple[str, ...], shown: str) -> None:
    found = policy.parse({KEY: text, **TYPED}).partition
    assert found == Partition("fields", terms=terms)
    assert found.text == shown
    assert policy.parse({KEY: shown, **TYPED}).partition == found


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({KEY: "day(time), hour(time)"}, "one of them a time"),
        ({KEY: "$.a, $.a", **TYPED}, "different terms"),
        ({KEY: "$.a,$.b,$.c,$.d,$.e", **TYPED}, "up to 4"),
        ({KEY: "$.a.b"}, r"\$\.a\.b needs lakestream\.schema.*schema infer"),
        ({KEY: "$.a..b", **TYPED}, "is not one of"),
        ({KEY: "year($.a)", **TYPED}, "is not one of"),
        ({KEY: "day(seq)"}, "is not one of"),
        ({KEY: "$.Card", "lakestream.mask": '{"$.card": "hash"}', **TYPED}, "is masked"),
        ({KEY: "$.card.no", "lakestream.mask": '{"$.card": "hash"}', **TYPED}, r"\$\.card\.no is masked"),
        ({KEY: "day($.card)", "lakestream.mask": '{"$.card.no": "hash"}', **TYPED}, r"\$\.card is masked"),
    ],
)
def test_wrong_terms_are_refused_with_the_reason(metadata: dict[str, str], reason: str) -> None:
    with pytest.raises(BadPolicy, match=reason):
        policy.parse(metadata)


def test_a_table_tells_its_layout() -> None:
    layout = Layout("fields", terms=("$time_", "hour", "$b"))
    assert layout.columns == ["by_field1", "by_day", "by_hour", "by_field2"]
    assert all(map(is_own, layout.columns))
    fields = [{"name": name, "metadata": layout.metadata(name)} for name in layout.columns]
    assert layout_of(layout.columns, msgspec.json.encode({"fields": fields}).decode()) == layout
    fields[0]["metadata"] = {}
    assert layout_of(layout.columns, msgspec.json.encode({"fields": fields}).decode()) is None
    assert layouts.layout_agrees(layout, Partition("fields", terms=("$time", "hour", "$b")), Partition(), None)
    assert not layouts.layout_agrees(layout, Partition("fields", terms=("hour", "$b")), Partition(), None)
    assert LAYOUT.metadata("by_field1") == {FIELD_METADATA: "country"}
    inner = Layout("fields", terms=layouts.typed_terms(("$time.a b", "$hour(time.x)", "$time")))
    assert inner.terms == ("$time_.a_x20_b", "$hour(time_.x)", "$time_")
    fields = [{"name": name, "metadata": inner.metadata(name)} for name in inner.columns]
    assert layout_of(inner.columns, msgspec.json.encode({"fields": fields}).decode()) == inner


def test_values_are_short_texts_of_scalar_columns_and_null_for_every_other_row() -> None:
    texts = ["de", "", None, NULL_PARTITION, "a\nb", "ü" * 32, "ü" * 33, "x/y=%"]
    columns: dict[str, Any] = {"s": pa.array(texts), "n": pa.array([1, None, -3, 0, 5, 6, 7, 8])}
    columns |= {"b": pa.array([True, False, None] + [True] * 5), "f": pa.array([0.5] * 8)}
    columns |= {"d": pa.chunked_array([pa.array([date(2026, 5, 1)] * 8)])}
    layout = Layout("fields", terms=("$s", "$n", "$b", "$d"))
    found = partitions.arrays(layout, columns, 8)
    assert found["by_field1"].to_pylist() == ["de", None, None, None, None, "ü" * 32, None, "x/y=%"]
    assert found["by_field2"].to_pylist() == ["1", None, "-3", "0", "5", "6", "7", "8"]
    assert found["by_field3"].to_pylist()[:3] == ["true", "false", None]
    assert found["by_field4"].to_pylist()[0] == "2026-05-01"
    for other in ("f", "lacking"):
        assert partitions.arrays(Layout("fields", terms=(f"${other}",)), columns, 8)["by_field1"].null_count == 8


def test_values_inside_of_structs_and_of_times_are_texts_too() -> None:
    moments = [datetime(2026, 5, 1, 23, 59, 59, 999999, UTC), datetime(1969, 12, 31, 23, tzinfo=UTC), None]
    struct = [{"city": {"zip": "1"}, "at": moments[0]}, {"city": None, "at": moments[1]}, None]
    columns: dict[str, Any] = {"a": pa.array(struct, pa.struct([
        ("city", pa.struct([("zip", pa.string())])), ("at", pa.timestamp("us", "UTC")),
    ]))}  # fmt: skip
    columns["d"] = pa.array([date(2026, 5, 1), None, date(1, 1, 1)])
    columns["s"] = pa.array(["2026-05-01"] * 3)

    def values(*terms: str) -> list[list[str | None]]:
        found = partitions.arrays(Layout("fields", terms=terms), columns, 3)
        return [each.to_pylist() for each in found.values()]

    assert values("$a.city.zip", "$a.city.none", "$a.city", "$s.zip") == [["1", None, None], *[[None] * 3] * 3]
    assert values("$month(a.at)", "$day(a.at)", "$hour(a.at)") == [
        ["2026-05", "1969-12", None],
        ["2026-05-01", "1969-12-31", None],
        ["2026-05-01T23", "1969-12-31T23", None],
    ]
    assert values("$month(d)", "$day(d)", "$hour(d)", "$day(s)") == [
        ["2026-05", None, "0001-01"], ["2026-05-01", None, "0001-01-01"], [None] * 3, [None] * 3,
    ]  # fmt: skip
    chunked = {"a": pa.chunked_array([columns["a"].slice(1), columns["a"].slice(0, 1)])}
    found = partitions.arrays(Layout("fields", terms=("$a.city.zip", "$day(a.at)")), chunked, 3)
    assert found["by_field1"].to_pylist() == [None, None, "1"]
    assert found["by_field2"].to_pylist() == ["1969-12-31", None, "2026-05-01"]


def messages(rows: list[tuple[int, str | None]]) -> pa.RecordBatch:
    """Return messages with (hours since the epoch, country), typed."""
    count = len(rows)
    found = {field.name: pa.nulls(count, field.type) for field in message_schema()}
    found["subject"] = pa.array(["s"] * count)
    found["seq"] = pa.array(range(1, count + 1), pa.int64())
    found["time_ns"] = pa.array([hours * HOUR_NS for hours, _ in rows], pa.int64())
    found["data"] = pa.array([b"x"] * count)
    found["country"] = pa.array([country for _, country in rows], pa.string())
    return pa.RecordBatch.from_pydict(found)


def written(table: Path, layout: Layout, rows: list[tuple[int, str | None]], random: bool = True) -> list[NewFile]:
    (table / "_delta_log").mkdir(parents=True, exist_ok=True)
    return DataFiles(str(table), layout, random=random, indexed=(("country",),)).write([messages(rows)])


@pytest.mark.parametrize("random", [True, False])
def test_each_partition_has_a_file_of_its_own_and_the_log_says_which(tmp_path: Path, random: bool) -> None:
    rows = [(1, "de"), (2, "fr"), (25, "de"), (26, None), (27, "de"), (30, "")]
    files = written(tmp_path, LAYOUT, rows, random)
    found = {}
    for file in files:
        stats = msgspec.json.decode(file.stats)
        found[tuple(file.partition_values.values())] = stats["minValues"]["seq"], stats["numRecords"]
    assert found == {
        ("1970-01-01", "de"): (1, 1),
        ("1970-01-01", "fr"): (2, 1),
        ("1970-01-02", "de"): (3, 2),
        ("1970-01-02", None): (4, 2),
    }
    of_de = next(file for file in files if msgspec.json.decode(file.stats)["numRecords"] == 2 and "de" in file.stats)
    stats = msgspec.json.decode(of_de.stats)
    assert (stats["minValues"]["country"], stats["maxValues"]["country"]) == ("de", "de"), "readers prune by it too"
    content = pq.read_table(tmp_path / of_de.path, partitioning=None)
    assert ("by_day" in content.column_names) == random
    if random:
        assert set(content.column("by_day").to_pylist()) == {date(1970, 1, 2)}
        assert set(content.column("by_field1").to_pylist()) == {"de"}


def test_hours_are_of_their_day(tmp_path: Path) -> None:
    moment = datetime(2026, 5, 1, 23, 59, tzinfo=UTC)
    files = written(tmp_path, Layout("fields", terms=("hour",)), [(int(moment.timestamp()) // 3600, "de")])
    assert [file.partition_values for file in files] == [{"by_day": "2026-05-01", "by_hour": "23"}]


def test_too_many_values_are_refused_before_they_become_files(tmp_path: Path) -> None:
    few: list[tuple[int, str | None]] = [(1, str(number)) for number in range(SUBJECT_MOST)]
    assert len(written(tmp_path / "few", LAYOUT, few)) == SUBJECT_MOST
    with pytest.raises(UnfitSubject):
        written(tmp_path / "many", LAYOUT, [*few, (1, "one more")])
    assert not list((tmp_path / "many").glob("*/*.parquet"))


def test_partitions_of_other_times_do_not_count() -> None:
    values = [{"by_day": f"2026-05-{day:02}", "by_field1": country} for day in range(1, 30) for country in ("de", None)]
    assert layouts.combinations(values) == 2


def test_an_iceberg_table_has_the_same_partitions_under_ids_of_their_own() -> None:
    layouts = [
        Layout("fields", terms=("hour", *(f"${number}" for number in range(4)))),
        Layout("tokens", tokens=(1, 32)),
    ]
    names = [column for layout in layouts for column in [*layout.columns, "bucket", "subject", "seq"]]
    ids = {name: field_id((name,)) for name in names}
    assert len(set(ids.values())) == len(ids)
    assert max(ids.values()) < 1_000, "those of typed columns are above"
    assert [each["transform"] for each in partition_fields(layouts[0].columns)] == ["identity"] * 6
