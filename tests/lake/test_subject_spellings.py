"""Tests of subjects of every legal spelling, in every layout, which every reader must find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakestream.lake.read.history.history import TableHistory
from lakestream.lake.staging import scan
from lakestream.lake.table import schema
from lakestream_sql.session import Session
from tests.lake.compacting import compact as compact_stream
from tests.lake.foreign import Readers, record
from tests.lake.model import StreamModel
from tests.lake.tables import ALL, partition_columns

pytestmark = pytest.mark.lake

FIT_FOR_DIRECTORIES = [
    b"plain",
    b"two.tokens",
    "größe.»".encode(),
    "日本.東京".encode(),
    "\U0001f600.emoji".encode(),
    "e\u0301.combining".encode(),
    "é.combining".encode(),
    "\u202eright.to.left".encode(),
    b"percent.%",
    b"percent.%41",
    b"percent.A",
    b"percent.%25",
    b"k=v",
    b"subject=k",
    b"quote.'",
    b"quote.''",
    b'quote."',
    b"tick.`",
    b"back\\slash",
    b"back\\\\slash",
    b"back\\x41",
    b"slash/es/..",
    b"-.._",
    b"colon:?#[]{}^|",
    b"dollar.$X.${Y}",
    b"semi;colon,comma",
    b"plus+and&",
    b"case.PAIR",
    b"case.pair",
    b"Case.Pair",
    b"NULL",
    b"null",
    b"0",
    b"00",
    b"1e3",
    b"true",
    b"2024-01-01",
    b"control.\x01\x7f",
    b"raw.\xff\xfe",
    b"raw.\\xff\\xfe",
    b"raw.\xc3",
    b"l" * 200,
    b"p" * 190 + b".1",
    b"p" * 190 + b".2",
]
UNFIT = [
    b"__HIVE_DEFAULT_PARTITION__",
    b"zero.\x00.byte",
    b"%" * 120,
    "größe".encode() * 60,
    b"q" * 1000 + b".1",
    b"q" * 1000 + b".2",
]
LAYOUTS = {"subject": ["subject"], "tokens:1,2": ["token1", "token2"], "bucket:5": ["bucket"]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_subject_survives_and_is_found_by_every_reader(spark: Any, tmp_path: Path, layout: str) -> None:
    lake = tmp_path / "lake"
    model = StreamModel(tmp_path / "log")
    model.configure({"lakestream.partition": layout})
    subjects = FIT_FOR_DIRECTORIES + (UNFIT if layout.startswith("bucket") else [])
    model.publish([(subject, b"", subject + b" %d" % n) for n in range(2) for subject in subjects])
    model.stage(lake)
    [stream] = scan.Scanner(str(lake)).scan()
    compact_stream(spark, str(lake), stream)
    table = model.table(lake)
    assert partition_columns(table) == LAYOUTS[layout]
    _check_all(spark, table, model)
    _check_each(spark, lake, table, model, subjects)


@pytest.mark.parametrize(
    ("layout", "unfit"),
    [("subject", UNFIT[0]), ("subject", UNFIT[2]), ("tokens:1,2", UNFIT[1]), ("tokens:1,2", UNFIT[4])],
    ids=lambda value: repr(value)[:16],
)
def test_what_cannot_be_a_directory_makes_buckets_and_is_found_there(
    spark: Any, tmp_path: Path, layout: str, unfit: bytes
) -> None:
    lake = tmp_path / "lake"
    model = StreamModel(tmp_path / "log")
    model.configure({"lakestream.partition": layout})
    model.publish([(b"plain", b"", b"1"), (unfit, b"", b"2")])
    model.stage(lake)
    [stream] = scan.Scanner(str(lake)).scan()
    compact_stream(spark, str(lake), stream)
    assert partition_columns(model.table(lake)) == ["bucket"]
    _check_each(spark, lake, model.table(lake), model, [b"plain", unfit])


def _check_all(spark: Any, table: str, model: StreamModel) -> None:
    for name, read in Readers(spark).all.items():
        assert [record(row) for row in read(table, None)] == model.expected(), name
    assert TableHistory(table).read(1, ALL, 1_000_000) == model.expected()


def _check_each(spark: Any, lake: Path, table: str, model: StreamModel, subjects: list[bytes]) -> None:
    """Assert that `WHERE subject = …` returns a subject's messages only; two raw subjects may show as one text."""
    texts = {subject: schema.subject_text(subject)[0] for subject in subjects}
    expected = {text: [found for found in model.expected() if texts[found.subject] == text] for text in texts.values()}
    found = Readers(spark)
    for name in ("duckdb", "deltalake", "pyarrow", "polars"):
        for text, wanted in expected.items():
            assert [record(row) for row in found.all[name](table, text)] == wanted, (name, text)
    pandas = found.pandas(table, None)
    for text, wanted in expected.items():
        assert [record(row) for row in pandas if row["subject"] == text] == wanted, ("pandas", text)
    _check_spark(spark, table, expected)
    with Session(lake) as session:
        for text, wanted in expected.items():
            if "\0" in text:  # where DuckDB ends an SQL text
                continue
            query = f"SELECT seq FROM delta.`streams/ORDERS` WHERE subject = {schema.quoted(text)} ORDER BY seq"
            assert [seq for (seq,) in session.query(query)] == [each.seq for each in wanted], text


def _check_spark(spark: Any, table: str, expected: dict[str, list[Any]]) -> None:
    """Check all subjects in one query, since each query takes Spark long."""
    # As parameters: in the text itself Spark would replace `${Y}`.
    parts = [
        f"SELECT {number} AS number, seq FROM delta.`{table}` WHERE subject = :s{number}"
        for number in range(len(expected))
    ]
    arguments = {f"s{number}": text for number, text in enumerate(expected)}
    found: dict[int, list[int]] = {}
    for start in range(0, len(parts), 25):
        for number, seq in spark.sql(" UNION ALL ".join(parts[start : start + 25]), args=arguments).collect():
            found.setdefault(number, []).append(seq)
    assert {number: sorted(seqs) for number, seqs in found.items()} == {
        number: [each.seq for each in wanted] for number, wanted in enumerate(expected.values())
    }


def test_a_range_of_subjects_skips_files_by_statistics(spark: Any, tmp_path: Path) -> None:
    """A range of subjects skips files by statistics, even with long common prefixes."""
    lake = tmp_path / "lake"
    model = StreamModel(tmp_path / "log")
    model.configure({"lakestream.partition": "bucket:4"})
    subjects = [b"prefix." * 20 + b"%03d" % n for n in range(100)]
    model.publish([(subject, b"", b"x") for subject in subjects])
    model.stage(lake)
    [stream] = scan.Scanner(str(lake)).scan()
    compact_stream(spark, str(lake), stream)
    actions = pa.table(DeltaTable(model.table(lake)).get_add_actions(flatten=True))
    bounds = list(zip(actions["min.subject"].to_pylist(), actions["max.subject"].to_pylist(), strict=True))
    assert len(bounds) == 4
    for subject in subjects:
        assert sum(low <= subject.decode() <= high for low, high in bounds) == 1
