"""Tests of single cells of row groups: the values that pyarrow decodes of the whole row group."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.lake.table.pages import cells, find_pages, numbers

pytestmark = pytest.mark.unit


def rows_of(count: int, seed: int) -> pa.Table:
    choose = random.Random(seed)
    texts = [f"s.{choose.randrange(20)}" for _ in range(count)]
    blobs = [None if choose.random() < 0.2 else choose.randbytes(choose.randrange(60)) for _ in range(count)]
    pairs = [[("a", "b")] * choose.randrange(1, 3) if count * 0.3 < row < count * 0.4 else None for row in range(count)]
    return pa.table(
        {
            "seq": pa.array(range(count), pa.int64()),
            "subject": pa.array(texts),
            "data": pa.array(blobs, pa.binary()),
            "none": pa.nulls(count, pa.binary()),
            "headers": pa.array(pairs, pa.map_(pa.string(), pa.string())),
        }
    )


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(1, 300),
    page=st.integers(1, 100),
    compression=st.sampled_from(["snappy", "zstd", "none", "gzip"]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.booleans(),
    required=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_single_cells_are_those_of_the_row_group(
    count: int,
    page: int,
    compression: str,
    version: str,
    dictionary: bool,
    required: bool,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rows, path = rows_of(count, seed), tmp_path_factory.mktemp("pages") / "x.parquet"
    if required:
        rows = rows.cast(pa.schema([field.with_nullable(field.name != "seq") for field in rows.schema]))
    pq.write_table(
        rows, path, compression=compression, data_page_version=version, use_dictionary=dictionary,
        max_rows_per_page=page, write_batch_size=page, write_page_checksum=True,
    )  # fmt: skip
    content, data = path.read_bytes(), pq.read_metadata(path)

    def read(offset: int, size: int) -> bytes:
        return content[offset : offset + size]

    wanted = sorted(random.Random(seed).sample(range(count), min(count, 5)))
    for place in range(data.num_columns):
        column, described = data.row_group(0).column(place), data.schema.column(place)
        name = described.path.partition(".")[0]
        pages = find_pages(column, described, count, read)
        found = cells(pages, wanted, read)
        expected = rows[name].take(pa.array(wanted)).cast(pa.binary() if name == "subject" else rows[name].type)
        if found is not None:
            assert found == expected.to_pylist()
        is_plain = version == "1.0" and not dictionary
        is_plain &= name in ("seq", "subject", "none") or (name == "data" and not rows[name].null_count)
        assert (found is not None) >= is_plain
        whole = numbers(pages, read)
        assert (whole is not None) == (is_plain and name == "seq")
        assert whole is None or whole.tolist() == rows[name].to_pylist()


def test_a_page_with_another_checksum_or_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(rows_of(100, 1), path, use_dictionary=False, write_page_checksum=True)
    content, data = path.read_bytes(), pq.read_metadata(path)
    pages = find_pages(
        data.row_group(0).column(0), data.schema.column(0), 100, lambda at, size: content[at : at + size]
    )
    for at in (pages.pages[0].at, pages.pages[0].at + pages.pages[0].size - 1):
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(ValueError, match="checksum"):
            cells(pages, [3], lambda offset, size, damaged=damaged: damaged[offset : offset + size])  # type: ignore[misc]
    with pytest.raises(ValueError, match="checksum"):
        numbers(pages, lambda offset, size: content[offset : offset + size - 1])


def test_what_is_no_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(rows_of(100, 1), path, use_dictionary=False)
    content, data = path.read_bytes(), pq.read_metadata(path)
    column, described = data.row_group(0).column(0), data.schema.column(0)
    refused = 0
    for at in range(column.data_page_offset, column.data_page_offset + 12):
        for flip in (1, 8, 128):
            damaged = content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :]
            read: Any = lambda offset, size, damaged=damaged: damaged[offset : offset + size]  # noqa: E731
            try:
                find_pages(column, described, 100, read)
            except ValueError:
                refused += 1
    assert refused > 10
    with pytest.raises(ValueError, match=r"cut short|no page|rows instead"):
        find_pages(column, described, 100, lambda at, size: content[: column.data_page_offset + 3][at : at + size])
