"""Encrypted tables without Spark: their keys and files, and what the log and the staging area show."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import msgspec
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import Schema
from pyarrow.parquet.encryption import create_decryption_properties

from lakestream.lake.staging import sealed, staging
from lakestream.lake.staging.staging import StreamIdentity
from lakestream.lake.storage.lake import open_storage, require
from lakestream.lake.table import encryption
from lakestream.lake.table.actions import AddFile, table_file
from lakestream.lake.table.encryption import TableSealed
from lakestream.lake.table.row_groups import read_footer
from lakestream.lake.table.schema import TABLE_COLUMNS, Layout, message_schema, table_schema
from lakestream.lake.table.typed_rows import MISFIT_SCHEMA
from lakestream.log.sealing.keys import VARIABLE, Keyring
from lakestream_iceberg.errors import NotInIceberg
from lakestream_iceberg.schema import iceberg_schema
from lakestream_spark.write.data_files import DataFiles
from lakestream_spark.write.file_statistics import FileStatistics
from lakestream_sql.session import extension_path

ROWS = pa.table({"subject": ["secret.a", "secret.b"], "seq": [1, 2]})


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(VARIABLE, "one")
    require(str(tmp_path), create=True)
    table = f"{tmp_path}/streams/S"
    os.makedirs(f"{table}/bucket=0")
    encryption.begin(table)
    return table


def written(table: str) -> str:
    path = f"{table}/bucket=0/part.parquet"
    with pq.ParquetWriter(path, ROWS.schema, encryption_properties=encryption.writing(table)) as writer:
        writer.write_table(ROWS)
    return path


def test_a_file_is_read_with_the_key_of_its_table_alone(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(table)
    assert b"secret" not in Path(path).read_bytes()
    with encryption.open_file(path, path) as file:
        assert file.read().equals(ROWS)
    footer, _ = read_footer(open_storage(table), path, table_file(AddFile(path)))
    assert (footer.mins.tolist(), footer.maxs.tolist()) == ([1], [2])
    for keys, reason in (("two", "was sealed with another key"), ("", f"set {VARIABLE}")):
        monkeypatch.setenv(VARIABLE, keys)
        with pytest.raises(TableSealed, match=reason):
            encryption.open_file(path, path)
    os.remove(f"{table}/_sealing.key")
    with pytest.raises(TableSealed, match="no directory above it"):
        encryption.open_file(path, path)


def test_one_damaged_copy_of_a_key_does_no_harm_and_two_are_found(table: str) -> None:
    path, key, found = written(table), Path(f"{table}/_sealing.key"), encryption.key_of(table)
    whole = key.read_bytes()
    for at in (place for place, byte in enumerate(whole) if byte):  # the rest is padding
        key.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert encryption.key_of(table) == found
    for damaged in (b"", whole[:1], bytes(each ^ 1 for each in whole)):
        key.write_bytes(damaged)
        with pytest.raises(TableSealed, match=r"_sealing\.key is damaged"):
            encryption.open_file(path, path)


def test_a_table_has_one_key_and_a_new_master_key_wraps_it(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, key = written(table), encryption.key_of(table)
    encryption.begin(table)
    assert encryption.key_of(table) == key
    lake = table.rpartition("/streams/")[0]
    assert sealed.rotate(lake, Keyring(["two", "one"])) == 1
    assert sealed.rotate(lake, Keyring(["two", "one"])) == 0
    monkeypatch.setenv(VARIABLE, "two")
    assert encryption.key_of(table) == key
    with encryption.open_file(path, path) as file:
        assert file.read().equals(ROWS)


@pytest.fixture
def delta(table: str) -> str:
    fill(table)
    return table


def fill(table: str) -> None:
    """Make a table of 20,000 messages, with the file that a compactor writes, where a key is."""
    count = 20_000
    columns = {"subject": [f"secret.{n % 7}" for n in range(count)], "seq": range(count), "time_ns": range(count)}
    values: dict[str, Any] = {**columns, "data": [b"secret %d" % n for n in range(count)]}
    arrays = [pa.array(values.get(field.name, [None] * count), field.type) for field in message_schema(False)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=message_schema(False))
    [file] = DataFiles(table, Layout("bucket")).write([batch])
    add = msgspec.to_builtins(file) | {"stats": file.stats}
    made = Schema.from_arrow(table_schema(TABLE_COLUMNS)).to_json()
    metadata = {"id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": made}
    metadata |= {"partitionColumns": [], "configuration": encryption.properties(TABLE_COLUMNS)}
    actions = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}, "metaData": metadata, "add": add}
    os.makedirs(f"{table}/_delta_log")
    lines = [json.dumps({name: value}) for name, value in actions.items()]
    Path(f"{table}/_delta_log/{0:020}.json").write_text("\n".join(lines))


def test_programs_with_keys_of_their_own(delta: str) -> None:
    """The table in docs/readers.md: who reads an encrypted table when told its key, and what the others say."""
    files, key = deltalake.DeltaTable(delta).file_uris(), encryption.key_of(delta)
    total = sum(range(20_000))
    told = polars.ParquetDecryptionProperties(footer_key=key)
    assert polars.scan_parquet(files, decryption=told).select(polars.col("seq").sum()).collect().item() == total
    given = create_decryption_properties(key)
    assert sum(pq.read_table(each, decryption_properties=given)["seq"].to_numpy().sum() for each in files) == total
    with duckdb.connect() as duck:
        duck.execute(f"LOAD '{extension_path()}'")
        with pytest.raises(duckdb.Error, match="encrypted"):
            duck.execute(f"SELECT sum(seq) FROM delta_scan('{delta}')").fetchall()
        duck.execute(f"PRAGMA add_parquet_key('key', '{base64.b64encode(key).decode()}')")
        one = f"read_parquet('{files[0]}', encryption_config = {{footer_key: 'key'}})"
        assert duck.execute(f"SELECT count(*) FROM {one}").fetchall() == [(20_000,)]
        with pytest.raises(duckdb.Error, match="are you using the right key"):
            duck.execute(f"SELECT sum(seq) FROM {one}").fetchall()
    with pytest.raises(Exception, match=r"(?i)encrypt"):
        deltalake.QueryBuilder().register("t", deltalake.DeltaTable(delta)).execute("SELECT sum(seq) FROM t").read_all()
    with pytest.raises(polars.exceptions.PolarsError):
        polars.scan_delta(delta).collect()


def test_a_plain_table_stays_plain(tmp_path: Path) -> None:
    path = str(tmp_path / "part.parquet")
    assert encryption.writing(str(tmp_path)) is None
    pq.write_table(ROWS, path)
    with encryption.open_file(path, path) as file:
        assert file.read().equals(ROWS)


def test_the_log_shows_no_subject_of_an_encrypted_table() -> None:
    for encrypted in (False, True):
        statistics = FileStatistics([("price",)], encrypted)
        statistics.add(pa.table({**dict(zip(ROWS.column_names, ROWS.columns, strict=True)), "price": [7.5, 8.5]}), ())
        statistics.widen("subject", "secret.a", "secret.b")
        statistics.widen("seq", 1, 2)
        said: dict[str, Any] = msgspec.json.decode(statistics.stated())
        assert said["numRecords"] == 2
        assert said["minValues"] == ({"seq": 1} if encrypted else {"price": 7.5, "seq": 1, "subject": "secret.a"})
        assert ("price" in said["nullCount"]) is not encrypted


def test_the_staging_area_shows_only_what_the_compactor_needs(tmp_path: Path) -> None:
    config = msgspec.Raw(
        b'{"name":"S","subjects":["secret.>"],"metadata":{"lakestream.on_delete":"keep","secret":"secret"}}'
    )
    identity = StreamIdentity("S", "$G", "uid", 1, config, encrypted=True)
    require(str(tmp_path), create=True)
    storage, directory = open_storage(str(tmp_path)), f"{tmp_path}/segments/S/uid"
    os.makedirs(directory)
    staging.introduce(storage, directory, identity)
    for _ in range(2):
        assert b"secret" not in Path(directory, "stream.json").read_bytes()
        found = staging.read_identity(directory)
        assert found is not None
        assert found.encrypted
        assert bytes(found.config) == b'{"metadata":{"lakestream.on_delete":"keep"}}'
        # As the server does once the stream is deleted.
        staging.introduce(storage, directory, msgspec.structs.replace(identity, encrypted=False))


def test_properties_name_only_columns_that_the_table_has() -> None:
    """Delta refuses each commit of a table whose properties name others."""
    key = "delta.dataSkippingStatsColumns"
    assert encryption.properties(["subject", "seq", "time_ns", "time", "data"])[key] == "seq,time,time_ns"
    assert encryption.properties(MISFIT_SCHEMA.names)[key] == "seq,time"


def test_an_encrypted_table_has_no_iceberg_table() -> None:
    """The metadata would show bounds of its columns."""
    columns = '{"type":"struct","fields":[{"name":"seq","type":"long","nullable":true,"metadata":{}}]}'
    metadata = {"configuration": encryption.properties(["seq"]), "schemaString": columns}
    with pytest.raises(NotInIceberg, match="its files are encrypted"):
        iceberg_schema("t", metadata)
    assert iceberg_schema("t", {**metadata, "configuration": {}})["fields"]
