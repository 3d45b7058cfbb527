"""Tests of single pages of row groups: the same rows as pyarrow's of the whole row group."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.lake.table.pages import find_pages, is_flat, small_file

pytestmark = pytest.mark.unit


def rows_of(count: int, seed: int) -> pa.Table:
    choose = random.Random(seed)
    texts = [f"s.{choose.randrange(20)}" for _ in range(count)]
    blobs = [None if choose.random() < 0.2 else choose.randbytes(choose.randrange(60)) for _ in range(count)]
    return pa.table(
        {
            "seq": pa.array(range(count), pa.int64()),
            "subject": pa.array(texts),
            "data": pa.array(blobs, pa.binary()),
            "headers": pa.array([[("a", "b")]] * count, pa.map_(pa.string(), pa.string())),
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
def test_rows_of_single_pages_are_those_of_the_row_group(
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

    wanted = np.array(sorted(random.Random(seed).sample(range(count), min(count, 5))))
    for place in range(data.num_columns):
        column = data.row_group(0).column(place)
        if not is_flat(column):
            assert column.path_in_schema.startswith("headers.")
            continue
        pages = find_pages(column, read)
        numbers = pages.holding(wanted)
        optional = data.schema.column(place).max_definition_level > 0
        made = small_file([(column, pages, optional)], numbers.tolist(), read)
        found = pq.read_table(pa.BufferReader(made), page_checksum_verification=True)
        held = [row for number in numbers for row in range(*pages.firsts[number : number + 2].tolist())]
        name = column.path_in_schema
        assert found[name].to_pylist() == rows[name].take(pa.array(held)).to_pylist()
        assert set(wanted.tolist()) <= set(held)


def test_what_is_no_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(rows_of(100, 1), path, use_dictionary=False)
    content, column = path.read_bytes(), pq.read_metadata(path).row_group(0).column(0)
    refused = 0
    for at in range(column.data_page_offset, column.data_page_offset + 12):
        for flip in (1, 8, 128):
            damaged = content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :]
            read: Any = lambda offset, size, damaged=damaged: damaged[offset : offset + size]  # noqa: E731
            try:
                find_pages(column, read)
            except ValueError:
                refused += 1
    assert refused > 10
    with pytest.raises(ValueError, match=r"cut short|no page|rows instead"):
        find_pages(column, lambda offset, size: content[: column.data_page_offset + 3][offset : offset + size])
