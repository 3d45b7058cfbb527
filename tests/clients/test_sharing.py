"""Tests of Delta Sharing through its socket: requests, answers and errors of the protocol, URLs, and tokens."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from lakestream_sharing.app import MAX_BODY, PREFIX, Limits
from lakestream_sharing.grants import EVERY, STREAM
from tests.delta_tables import BEGIN_MS
from tests.sharing_world import DELTA, World

HOUR_NS = 3_600 * 10**9


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    lake = tmp_path / "lake of $X"
    (lake / "streams").mkdir(parents=True)
    world = World(lake)
    yield world
    world.close()


def seqs(content: bytes) -> list[int]:
    return pq.read_table(io.BytesIO(content), columns=["seq"])["seq"].to_pylist()


# ---------------------------------------------------------------------- lists
def test_lists_show_what_the_token_covers(world: World) -> None:
    for stream in ("ORDERS", "EVENTS", "SECRET", "KV_conf"):
        world.table(stream)
    token = world.token("ORDERS", "EVENTS", "UNKNOWN")
    assert world.ask("/shares", token).json == {"items": [{"name": "sales"}]}
    assert world.ask("/shares/SALES", token).json == {"share": {"name": "sales"}}
    assert world.ask("/shares/sales/schemas", token).json == {"items": [{"name": "streams", "share": "sales"}]}
    tables = world.ask("/shares/sales/schemas/Streams/tables", token)
    assert tables.headers["content-type"] == "application/json; charset=utf-8"
    assert [each["name"] for each in tables.json["items"]] == ["EVENTS", "ORDERS"]
    assert tables.json["items"][0] == {"name": "EVENTS", "schema": "streams", "share": "sales"}
    assert world.ask("/shares/sales/all-tables", token).json == tables.json


def test_a_token_of_all_streams_covers_later_ones_but_not_the_tokens(world: World) -> None:
    token = world.token(EVERY)
    world.table("ORDERS")
    world.table(STREAM)
    assert [each["name"] for each in world.ask("/shares/sales/all-tables", token).json["items"]] == ["ORDERS"]
    world.table("LATER")
    assert len(world.ask("/shares/sales/all-tables", token).json["items"]) == 2
    assert world.query(STREAM, token).error == (404, "RESOURCE_DOES_NOT_EXIST")


def test_lists_have_pages(world: World) -> None:
    names = [f"S{number}" for number in range(5)]
    for name in names:
        world.table(name)
    token = world.token(*names)
    found, page = [], ""
    while True:
        answer = world.ask(f"/shares/sales/all-tables?maxResults=2&pageToken={page}", token).json
        found += [each["name"] for each in answer["items"]]
        page = answer.get("nextPageToken", "")
        if not page:
            break
        assert len(answer["items"]) == 2
    assert found == names
    nothing = world.ask("/shares/sales/all-tables?maxResults=0", token).json
    assert nothing["items"] == []
    assert nothing["nextPageToken"]
    first = world.ask("/shares/sales/all-tables?maxResults=1", token).json["nextPageToken"]
    assert world.ask(f"/shares?pageToken={first}", token).error == (400, "INVALID_PARAMETER_VALUE")


# ---------------------------------------------------------------------- versions and metadata
def test_version_and_metadata(world: World) -> None:
    table = world.table("ORDERS", "subject")
    table.append([("o.de", 1), ("o.fr", 2)])
    token, path = world.token("ORDERS"), "/shares/sales/schemas/streams/tables/ORDERS"
    version = world.ask(f"{path}/version", token)
    assert (version.status, version.body, version.headers["delta-table-version"]) == (200, b"", "1")
    assert world.ask(path, token, method="HEAD").headers["delta-table-version"] == "1"
    assert (
        world.ask(f"{path}/version?startingTimestamp=2000-01-01T00:00:00Z", token).headers["delta-table-version"] == "0"
    )
    late = world.ask(f"{path}/version?startingTimestamp=2100-01-01T00:00:00Z", token)
    assert late.error == (400, "INVALID_PARAMETER_VALUE")
    plain = world.ask(f"{path}/metadata", token)
    assert plain.headers["content-type"] == "application/x-ndjson; charset=utf-8"
    assert (plain.headers["delta-table-version"], plain.headers["delta-sharing-capabilities"]) == (
        "1",
        "responseformat=parquet",
    )
    protocol, metadata = plain.lines
    assert protocol == {"protocol": {"minReaderVersion": 1}}
    assert metadata["metaData"]["partitionColumns"] == ["subject"]
    assert metadata["metaData"]["numFiles"] == 2
    assert metadata["metaData"]["configuration"] == {}
    names = [field["name"] for field in json.loads(metadata["metaData"]["schemaString"])["fields"]]
    assert "price" in names, "typed columns are columns like the others"
    rich = world.ask(f"{path}/metadata", token, headers=DELTA)
    assert rich.headers["delta-sharing-capabilities"] == "responseformat=delta"
    protocol, metadata = rich.lines
    assert protocol["protocol"]["deltaProtocol"] == {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    assert metadata["metaData"]["deltaMetadata"]["configuration"] == {"delta.enableDeletionVectors": "true"}
    either = {"delta-sharing-capabilities": "responseFormat=parquet,DELTA;readerFeatures=deletionVectors,columnMapping"}
    assert "deltaProtocol" in world.ask(f"{path}/metadata", token, headers=either).lines[0]["protocol"]


# ---------------------------------------------------------------------- queries
@pytest.mark.parametrize("name", ["PEOPLE", "PEOPLE_misfits"])
def test_a_table_with_masked_fields_is_not_shared(world: World, name: str) -> None:
    properties = {"lakestream.mask": '{"email": "null"}', "lakestream.mask_clear": '["alice"]'}
    world.table("PEOPLE", properties=properties).append([("p.a", 1)])
    world.table("PEOPLE_misfits").append([("p.a", 1)])
    token = world.token(name)
    for asked in (
        world.query(name, token),
        world.ask(f"/shares/sales/schemas/streams/tables/{name}/version", token),
    ):
        assert asked.error[0] == 403
        assert "lakestream.mask" in asked.json["message"]


def test_a_query_names_files_that_anyone_with_the_url_can_read(world: World) -> None:
    table = world.table("ORDERS")
    table.append([("o.de", 1), ("o.fr", 2)])
    token = world.token("ORDERS")
    answer = world.query("ORDERS", token)
    assert answer.headers["delta-table-version"] == "1"
    [_, _, line] = answer.lines
    file = line["file"]
    assert json.loads(file["stats"])["numRecords"] == 2
    assert file["expirationTimestamp"] == world.now_ns // 1_000_000 + 3_600_000
    assert "version" not in file
    whole = world.ask(file["url"])
    assert (whole.status, seqs(whole.body), len(whole.body)) == (200, [1, 2], file["size"])
    assert world.ask(file["url"], method="HEAD").headers["content-length"] == str(file["size"])
    part = world.ask(file["url"], headers={"Range": "bytes=4-9"})
    assert (part.status, part.body) == (206, whole.body[4:10])
    assert part.headers["content-range"] == f"bytes 4-9/{file['size']}"
    for wanted in ("bytes=-4", f"bytes={file['size'] - 4}-"):
        assert world.ask(file["url"], headers={"Range": wanted}).body == b"PAR1"
    for wanted in (f"bytes={file['size']}-", "bytes=-0", "bytes=0-1,4-5", "lines=1-2"):
        assert world.ask(file["url"], headers={"Range": wanted}).status == 416
    for tag, status in ((part.headers["etag"], 206), (part.headers["last-modified"], 206), ('"another"', 200)):
        assert world.ask(file["url"], headers={"Range": "bytes=0-3", "If-Range": tag}).status == status
    again = world.query("ORDERS", token).lines[2]["file"]
    assert again["id"] == file["id"]


def test_partition_values_and_limits(world: World) -> None:
    table = world.table("ORDERS", "subject")
    table.append([("o.de", 1), ("o.fr", 2), ("o.fr", 3)])
    table.append([("o.de", 4)])
    token = world.token("ORDERS")
    files = [line["file"] for line in world.query("ORDERS", token).lines[2:]]
    assert sorted(file["partitionValues"]["subject"] for file in files) == ["o.de", "o.de", "o.fr"]
    assert len(world.query("ORDERS", token, limitHint=1).lines) == 3
    assert len(world.query("ORDERS", token, limitHint=0).lines) == 2
    assert len(world.query("ORDERS", token, limitHint=100).lines) == 5
    wanted = {"op": "equal", "children": [column("subject"), literal("o.de")]}
    found = world.query("ORDERS", token, jsonPredicateHints=json.dumps(wanted)).lines[2:]
    assert [line["file"]["partitionValues"]["subject"] for line in found] == ["o.de", "o.de"]
    late = {"op": "greaterThan", "children": [column("seq", "long"), literal("3", "long")]}
    assert len(world.query("ORDERS", token, jsonPredicateHints=json.dumps(late)).lines) == 3
    for odd in (
        "no JSON",
        '{"op": "like"}',
        json.dumps({"op": "equal", "children": [column("nothing"), literal("1")]}),
    ):
        assert len(world.query("ORDERS", token, jsonPredicateHints=odd).lines) == 5
    assert len(world.query("ORDERS", token, predicateHints=["seq > 3", "odd ("]).lines) == 5


def column(name: str, kind: str = "string") -> dict[str, str]:
    return {"op": "column", "name": name, "valueType": kind}


def literal(value: str, kind: str = "string") -> dict[str, str]:
    return {"op": "literal", "value": value, "valueType": kind}


def test_deleted_rows_need_a_client_that_knows_deletion_vectors(world: World) -> None:
    table = world.table("ORDERS")
    table.append([("o.de", 1), ("o.fr", 2)])
    path = next(iter(table.files))
    table.delete(path, [0])
    token = world.token("ORDERS", history=True)
    refused = world.query("ORDERS", token)
    assert refused.error == (400, "DS_UNSUPPORTED_DELTA_TABLE_FEATURES")
    assert "responseformat=delta" in refused.json["message"]
    without = {"delta-sharing-capabilities": "responseformat=delta"}
    assert world.query("ORDERS", token, without).error == (400, "DS_UNSUPPORTED_DELTA_TABLE_FEATURES")
    both = {"delta-sharing-capabilities": "responseformat=delta,parquet"}
    assert world.query("ORDERS", token, both).error == (400, "DS_UNSUPPORTED_DELTA_TABLE_FEATURES")
    assert world.query("ORDERS", token, version=1).status == 200, "no row was deleted then"
    [_, metadata, line] = world.query("ORDERS", token, DELTA).lines
    assert (metadata["metaData"]["numFiles"], "version" in metadata["metaData"]) == (1, False)
    add = line["file"]["deltaSingleAction"]["add"]
    assert line["file"]["deletionVectorFileId"]
    vector = add["deletionVector"]
    assert (vector["storageType"], vector["cardinality"]) == ("p", 1)
    content = world.ask(vector["pathOrInlineDv"]).body
    assert content == next(table.path.glob("deletion_vector_*.bin")).read_bytes()
    assert seqs(world.ask(add["path"]).body) == [1, 2], "the file is whole: the reader applies the vector"


def test_features_of_a_table_decide_the_format(world: World) -> None:
    world.table("NEW", features=["typeWidening", "v2Checkpoint"]).append([("a", 1)])
    token = world.token("NEW")
    assert world.query("NEW", token).error == (400, "DS_UNSUPPORTED_DELTA_TABLE_FEATURES")
    assert world.query("NEW", token, DELTA).error == (400, "DS_UNSUPPORTED_DELTA_TABLE_FEATURES")
    knows = {"delta-sharing-capabilities": "responseformat=delta;readerfeatures=deletionvectors,typewidening"}
    protocol = world.query("NEW", token, knows).lines[0]["protocol"]["deltaProtocol"]
    assert protocol["readerFeatures"] == ["deletionVectors", "typeWidening"], "none that concerns only the log"


def test_the_end_of_an_answer_is_marked_where_asked(world: World) -> None:
    world.table("ORDERS").append([("o.de", 1)])
    token = world.token("ORDERS")
    ended = {"delta-sharing-capabilities": "responseformat=parquet;includeEndStreamAction=true"}
    answer = world.query("ORDERS", token, ended)
    assert answer.headers["delta-sharing-capabilities"] == "responseformat=parquet;includeendstreamaction=true"
    assert answer.lines[-1] == {"endStreamAction": {"minUrlExpirationTimestamp": world.now_ns // 1_000_000 + 3_600_000}}


def test_a_refresh_token_renews_the_urls_of_its_version(world: World) -> None:
    table = world.table("ORDERS")
    table.append([("o.de", 1)])
    token, other = world.token("ORDERS"), world.token("ORDERS")
    first = world.query("ORDERS", token, includeRefreshToken=True)
    refresh = first.lines[-1]["endStreamAction"]["refreshToken"]
    table.append([("o.de", 2)])
    again = world.query("ORDERS", token, refreshToken=refresh, includeRefreshToken=True)
    assert again.headers["delta-table-version"] == "1"
    assert [line["file"]["id"] for line in again.lines[2:-1]] == [first.lines[2]["file"]["id"]]
    assert world.query("ORDERS", other, refreshToken=refresh).error == (400, "INVALID_PARAMETER_VALUE")
    assert world.query("ORDERS", token, refreshToken=refresh + "A").error == (400, "INVALID_PARAMETER_VALUE")
    world.now_ns += 25 * HOUR_NS
    assert world.query("ORDERS", token, refreshToken=refresh).error == (400, "INVALID_PARAMETER_VALUE")


# ---------------------------------------------------------------------- history
def test_time_travel(world: World) -> None:
    table = world.table("ORDERS")
    for seq in (1, 2, 3):
        table.append([("o.de", seq)])
    token = world.token("ORDERS", history=True)
    answer = world.query("ORDERS", token, version=2)
    assert answer.headers["delta-table-version"] == "2"
    assert [line["file"]["version"] for line in answer.lines[2:]] == [2, 2]
    assert answer.lines[2]["file"]["timestamp"] == BEGIN_MS + 3_000
    assert answer.lines[1]["metaData"]["version"] == 2

    def at(time: str) -> str | tuple[int, str]:
        found = world.query("ORDERS", token, timestamp=time)
        return found.headers["delta-table-version"] if found.status == 200 else found.error

    assert at(instant(BEGIN_MS + 2_999)) == "1"
    assert at(instant(BEGIN_MS + 3_000)) == "2"
    assert at("2100-01-01T00:00:00+02:00") == "3"
    assert at("2000-01-01T00:00:00Z") == (400, "INVALID_PARAMETER_VALUE")
    assert at("yesterday") == (400, "INVALID_PARAMETER_VALUE")
    assert world.query("ORDERS", token, version=4).error == (400, "INVALID_PARAMETER_VALUE")
    plain = world.token("ORDERS")
    for body in ({"version": 1}, {"timestamp": "2100-01-01T00:00:00Z"}, {"startingVersion": 0}):
        assert world.query("ORDERS", plain, **body).error == (403, "PERMISSION_DENIED")


def instant(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_versions_end_with_the_retention_of_the_table(world: World) -> None:
    table = world.table("ORDERS", properties={"delta.deletedFileRetentionDuration": "interval 2 hours"})
    table.append([("o.de", 1)])
    table.append([("o.de", 2)])
    token = world.token("ORDERS", history=True)
    assert world.query("ORDERS", token, version=1).status == 200
    world.now_ns = (table.time_ms * 1_000_000) + 2 * HOUR_NS + 1
    assert world.query("ORDERS", token, version=1).error == (400, "INVALID_PARAMETER_VALUE")
    assert world.query("ORDERS", token, version=2).status == 200, "the newest is there, however old"


def test_changes_of_a_table_with_the_feed(world: World) -> None:
    table = world.table("ORDERS", properties={"delta.enableChangeDataFeed": "true"})
    table.append([("o.de", 1), ("o.fr", 2)])
    add = dict(next(iter(table.files.values())))
    cdc = {key: table.write([("o.fr", 2)])[key] for key in ("path", "partitionValues", "size")}
    table.commit(
        {"remove": table.removed(add)}, {"add": table.write([("o.de", 1)])}, {"cdc": {**cdc, "dataChange": False}}
    )
    token, path = world.token("ORDERS", history=True), "/shares/sales/schemas/streams/tables/ORDERS/changes"
    answer = world.ask(f"{path}?startingVersion=0", token)
    assert (answer.status, answer.headers["delta-table-version"]) == (200, "0")
    assert [next(iter(line)) for line in answer.lines] == ["protocol", "metaData", "add", "cdf"]
    assert answer.lines[1]["metaData"]["configuration"] == {"enableChangeDataFeed": "true"}
    changed = answer.lines[3]["cdf"]
    assert (changed["version"], changed["timestamp"]) == (2, BEGIN_MS + 3_000)
    assert seqs(world.ask(changed["url"]).body) == [2]
    rich = world.ask(f"{path}?startingVersion=1&endingVersion=2&includeHistoricalMetadata=true", token, headers=DELTA)
    kinds = [next(iter(line.get("file", {}).get("deltaSingleAction", line))) for line in rich.lines]
    assert kinds == ["protocol", "metaData", "add", "cdc"]
    assert rich.lines[1]["metaData"]["version"] == 1
    for query in (
        "",
        "startingVersion=9",
        "startingVersion=2&endingVersion=1",
        "startingVersion=0&startingTimestamp=x",
    ):
        assert world.ask(f"{path}?{query}", token).error == (400, "INVALID_PARAMETER_VALUE")
    assert world.ask(f"{path}?startingVersion=0", world.token("ORDERS")).error == (403, "PERMISSION_DENIED")


def test_a_table_without_the_feed_says_so(world: World) -> None:
    world.table("ORDERS").append([("o.de", 1)])
    token = world.token("ORDERS", history=True)
    answer = world.ask("/shares/sales/schemas/streams/tables/ORDERS/changes?startingVersion=0", token)
    assert answer.error == (400, "INVALID_PARAMETER_VALUE")
    assert "no change data feed" in answer.json["message"]


def test_files_since_a_version(world: World) -> None:
    table = world.table("ORDERS")
    table.append([("o.de", 1)])
    table.append([("o.de", 2)])
    token = world.token("ORDERS", history=True)
    answer = world.query("ORDERS", token, startingVersion=2)
    assert [next(iter(line)) for line in answer.lines] == ["protocol", "metaData", "add"]
    assert answer.lines[2]["add"]["version"] == 2
    assert len(world.query("ORDERS", token, startingVersion=1, endingVersion=1).lines) == 3


# ---------------------------------------------------------------------- tokens and URLs
def test_requests_without_a_valid_token(world: World) -> None:
    world.table("ORDERS")
    token = world.token("ORDERS")
    for given in ("", "nonsense", token[:-1], "\u20ac"[:0] + "x" * 5000):
        answer = world.ask("/shares", given)
        assert answer.error == (401, "UNAUTHENTICATED")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert world.ask("/shares", headers={"Authorization": f"Basic {token}"}).error == (401, "UNAUTHENTICATED")
    assert world.ask("/shares", headers={"Authorization": f"bearer {token}"}).status == 200


def test_tokens_end_by_time_and_by_revocation_with_their_urls(world: World) -> None:
    world.table("ORDERS").append([("o.de", 1)])
    brief, revoked = world.token("ORDERS", days=1 / 48), world.token("ORDERS")
    file = world.query("ORDERS", brief).lines[2]["file"]
    assert file["expirationTimestamp"] == world.now_ns // 1_000_000 + 1_800_000, "no URL outlives its token"
    url = world.query("ORDERS", revoked).lines[2]["file"]["url"]
    assert world.ask(url).status == 200
    world.entries = {key: [] for key in world.entries}
    world.forget()
    assert world.query("ORDERS", revoked).error == (401, "UNAUTHENTICATED")
    assert world.ask(url).error == (403, "PERMISSION_DENIED")
    token = world.token("ORDERS", days=1)
    world.now_ns += 24 * HOUR_NS
    assert world.ask("/shares", token).error == (401, "UNAUTHENTICATED")


def test_nobody_reads_while_tokens_cannot_be_looked_up(world: World) -> None:
    world.table("ORDERS").append([("o.de", 1)])
    token = world.token("ORDERS")
    url = world.query("ORDERS", token).lines[2]["file"]["url"]
    world.forget()
    world.reachable = False
    assert world.ask("/shares", token).error == (503, "SERVICE_UNAVAILABLE")
    assert world.ask(url).error == (503, "SERVICE_UNAVAILABLE")
    world.reachable = True
    assert world.ask("/shares", token).status == 200


def test_tables_that_the_token_does_not_cover_do_not_exist(world: World) -> None:
    world.table("ORDERS")
    world.table("SECRET")
    token = world.token("ORDERS")
    known, unknown = world.query("SECRET", token), world.query("NONE", token)
    assert known.error == unknown.error == (404, "RESOURCE_DOES_NOT_EXIST")
    assert known.json["message"].replace("SECRET", "NONE") == unknown.json["message"]
    assert world.ask("/shares/other/all-tables", token).error == (404, "RESOURCE_DOES_NOT_EXIST")
    assert world.ask("/shares/sales/schemas/other/tables", token).error == (404, "RESOURCE_DOES_NOT_EXIST")
    assert world.query("orders", token).status == 200, "names are case-insensitive"
    for odd in ("..%2FORDERS", "%2e%2e", "ORDERS%2F_delta_log", "ORDERS%00"):
        assert world.query(odd, token).error == (404, "RESOURCE_DOES_NOT_EXIST")


def test_a_url_is_for_one_file_until_its_time(world: World, tmp_path: Path) -> None:
    world.table("ORDERS").append([("o.de", 1)])
    world.table("SECRET").append([("s", 1)])
    token = world.token("ORDERS", "SECRET")
    url, other = (world.query(each, token).lines[2]["file"]["url"] for each in ("ORDERS", "SECRET"))
    parts, others = urlsplit(url), urlsplit(other)
    base = f"{world.address}{PREFIX}/files"
    forged = [
        f"{base}/{others.path.rpartition('/')[2]}?{parts.query}",
        url[:-1] + ("A" if url[-1] != "A" else "B"),
        url.partition("?")[0],
        f"{base}/..%2F..%2Fetc%2Fpasswd?{parts.query}",
        f"{base}/%2Fetc%2Fpasswd?{parts.query}",
        f"{base}/{'A' * 7000}?{parts.query}",
        f"{base}/{parts.path.rpartition('/')[2]}=?{parts.query}",
    ]
    for each in forged:
        assert world.ask(each).error == (403, "PERMISSION_DENIED"), each
    assert world.ask(f"{base}/../../../../etc/passwd?{parts.query}").status in (403, 404)
    assert world.ask(url, method="POST", body=b"").status == 405
    world.now_ns += HOUR_NS
    assert world.ask(url).error == (403, "PERMISSION_DENIED")


def test_urls_end_with_the_process_unless_the_key_is_kept(world: World) -> None:
    world.table("ORDERS").append([("o.de", 1)])
    token = world.token("ORDERS")
    path = world.query("ORDERS", token).lines[2]["file"]["url"].removeprefix(world.address)
    another = World(world.lake)
    another.entries = world.entries
    assert another.ask(another.address + path).error == (403, "PERMISSION_DENIED")
    another.close()
    first, second = (
        World(world.lake, key=b"k" * 32),
        World(world.lake, key=b"k" * 32, public_url="https://shares.example/"),
    )
    first.entries = second.entries = world.entries
    url = second.query("ORDERS", token).lines[2]["file"]["url"]
    assert url.startswith(f"https://shares.example{PREFIX}/files/")
    assert first.ask(first.address + url.removeprefix("https://shares.example")).status == 200
    first.close()
    second.close()


def test_files_outside_of_the_lake_are_never_sent(world: World, tmp_path: Path) -> None:
    table = world.table("ORDERS")
    table.append([("o.de", 1)])
    token = world.token("ORDERS")
    [name] = table.files
    url = world.query("ORDERS", token).lines[2]["file"]["url"]
    outside = tmp_path / "outside.parquet"
    shutil.move(table.path / name, outside)
    os.symlink(outside, table.path / name)
    assert world.ask(url).error == (404, "RESOURCE_DOES_NOT_EXIST"), "a link out of the lake"
    for path in (outside.as_uri(), str(outside), "../../../outside.parquet"):
        table.commit({"add": {**table.files[name], "path": path}})
        answer = world.query("ORDERS", token)
        assert answer.error == (403, "PERMISSION_DENIED"), path
        assert str(tmp_path) not in answer.json["message"]
        table.commit({"remove": table.removed({**table.files[path]})})


def test_a_table_that_is_deleted_meanwhile(world: World) -> None:
    table = world.table("ORDERS")
    table.append([("o.de", 1)])
    token = world.token("ORDERS")
    url = world.query("ORDERS", token).lines[2]["file"]["url"]
    shutil.rmtree(table.path)
    assert world.ask(url).error == (404, "RESOURCE_DOES_NOT_EXIST")
    assert world.query("ORDERS", token).error == (404, "RESOURCE_DOES_NOT_EXIST")
    assert world.ask("/shares/sales/all-tables", token).json == {"items": []}


# ---------------------------------------------------------------------- malformed requests, limits
@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b'{"limitHint": -1}',
        b'{"limitHint": "1"}',
        b'{"version": 1, "timestamp": "2026-01-01T00:00:00Z"}',
        b'{"endingVersion": 1}',
        b'{"version": 99999999999999999999}',
        b'{"predicateHints": "x"}',
        b"\xff",
        b'{"pageToken": "x"}',
        b'{"refreshToken": "x"}',
        b'{"version": 0, "includeRefreshToken": true}',
    ],
)
def test_malformed_queries(world: World, body: bytes) -> None:
    world.table("ORDERS")
    token = world.token("ORDERS", history=True)
    answer = world.ask("/shares/sales/schemas/streams/tables/ORDERS/query", token, body)
    assert answer.error == (400, "INVALID_PARAMETER_VALUE")


def test_malformed_requests(world: World) -> None:
    world.table("ORDERS").append([("o.de", 1)])
    token = world.token("ORDERS")
    for query in ("maxResults=-1", "maxResults=x", "maxResults=99999999999999999999", "pageToken=x.y.z", "pageToken=x"):
        assert world.ask(f"/shares?{query}", token).error == (400, "INVALID_PARAMETER_VALUE")
    odd = {"delta-sharing-capabilities": "responseformat=avro"}
    assert world.query("ORDERS", token, odd).error == (400, "INVALID_PARAMETER_VALUE")
    assert world.ask("/nothing", token).error == (404, "RESOURCE_DOES_NOT_EXIST")
    assert world.ask("/shares", token, b"", method="POST").status == 405
    assert world.ask("/shares/sales/schemas/streams/tables/ORDERS/query", token, b"").status == 200
    large = world.ask("/shares/sales/schemas/streams/tables/ORDERS/query", token, b" " * (MAX_BODY + 1))
    assert large.error == (413, "RESOURCE_EXHAUSTED")
    address = urlsplit(world.address)
    head = f"GET {PREFIX}/shares/sales/schemas/streams/tables/ORDERS/metadata HTTP/1.1\r\nAuthorization: Bearer {token}"
    query = head.replace("GET", "POST").replace("/metadata", "/query").encode()
    with socket.create_connection((str(address.hostname), int(address.port or 0)), 30) as client:
        client.sendall(query + b"\r\nHost: a b:c\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 400 ")
    for raw in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/9\r\n\r\n", b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n"):
        with socket.create_connection((address.hostname, address.port), 30) as client:
            client.sendall(raw)
            client.shutdown(socket.SHUT_WR)
            assert b" 200 " not in client.recv(65536)
    assert world.ask("/shares", token).status == 200


def test_limits_of_answers(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    world = World(tmp_path, Limits(files=2, answer_bytes=1500, url_seconds=60))
    token = world.token("ORDERS", "BIG")
    table = world.table("ORDERS")
    table.append([("o.de", 1)])
    assert world.query("ORDERS", token).lines[2]["file"]["expirationTimestamp"] == world.now_ns // 1_000_000 + 60_000
    for seq in (2, 3):
        table.append([("o.de", seq)])
    answer = world.query("ORDERS", token)
    assert answer.error == (413, "RESOURCE_EXHAUSTED")
    assert "2 files" in answer.json["message"]
    world.table("BIG", properties={"delta.enableChangeDataFeed": "x" * 2000})
    assert world.query("BIG", token, DELTA).error == (413, "RESOURCE_EXHAUSTED")
    world.close()


def test_more_requests_than_allowed_are_told_to_come_again(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    world = World(tmp_path, Limits(requests=1))
    token = world.token("ORDERS")
    world.hold(True)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(world.ask, "/shares", token)
        assert world.asked.wait(30)
        second = world.ask("/shares", token)
        world.hold(False)
        assert first.result(30).status == 200
    assert second.error == (429, "RESOURCE_EXHAUSTED")
    assert second.headers["retry-after"] == "1"
    assert world.ask("/shares", token).status == 200
    world.close()


def test_a_client_that_leaves_during_a_download_is_no_error(world: World, caplog: pytest.LogCaptureFixture) -> None:
    table = world.table("ORDERS")
    table.append([("o.de", 1)])
    [name] = table.files
    token = world.token("ORDERS")
    url = urlsplit(world.query("ORDERS", token).lines[2]["file"]["url"])
    with (table.path / name).open("ab") as file:
        file.truncate(64 << 20)
    with socket.create_connection((str(url.hostname), int(url.port or 0)), 30) as client:
        client.sendall(f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
    assert world.ask("/shares", token).status == 200
    assert world.ask(url.geturl(), headers={"Range": "bytes=0-3"}).body == b"PAR1"
    assert "ERROR" not in caplog.text


def test_a_client_that_does_not_read_its_download_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read held its place for as long as its connection."""
    monkeypatch.setattr("lakestream_client.listening.STALLED_S", 0.1)
    (tmp_path / "streams").mkdir()
    world = World(tmp_path, Limits(downloads=1))
    table = world.table("ORDERS")
    table.append([("o.de", 1)])
    [name] = table.files
    link = world.query("ORDERS", world.token("ORDERS")).lines[2]["file"]["url"]
    url = urlsplit(link)
    with (table.path / name).open("ab") as file:
        file.truncate(64 << 20)
    with socket.create_connection((str(url.hostname), int(url.port or 0)), 30) as client:
        client.sendall(f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        assert world.ask(link, headers={"Range": "bytes=0-3"}).body == b"PAR1", "its place is free again"
    world.close()


def test_limits_of_connections(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    world = World(tmp_path, connections={"max_connections": 2, "idle_s": 0.3})
    address = urlsplit(world.address)
    target = str(address.hostname), int(address.port or 0)
    with socket.create_connection(target, 30) as silent, socket.create_connection(target, 30) as slow:
        slow.sendall(b"GET /delta-sharing/shares HTTP/1.1\r\nHost: x\r\n")
        with contextlib.suppress(ConnectionError):
            assert silent.recv(100) == b"", "no request came"
        with contextlib.suppress(ConnectionError):
            assert b" 200 " not in slow.recv(100), "the header did not end"
    assert world.ask("/shares").status == 401
    world.close()


def test_a_connection_without_a_request_makes_room_for_another(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    world = World(tmp_path, connections={"max_connections": 2, "idle_s": 60})
    address = urlsplit(world.address)
    with contextlib.ExitStack() as stack:

        def connect() -> socket.socket:
            opened = socket.create_connection((str(address.hostname), int(address.port or 0)), 30)
            opened.sendall(b"GET /delta-sharing/shares HTTP/1.1\r\nHost: x\r\n")
            return stack.enter_context(opened)

        def is_closed(opened: socket.socket) -> bool:
            try:
                return opened.recv(1) == b""
            except ConnectionError:
                return True

        idle = [connect(), connect()]
        for each in idle:
            each.sendall(b"\r\n")
            assert each.recv(12) == b"HTTP/1.1 401"
        busy = []
        for each in idle:
            each.recv(65536)
            busy.append(connect())
            assert is_closed(each)
            world.hold(True)
            busy[-1].sendall(f"Authorization: Bearer {world.token('ORDERS')}\r\n\r\n".encode())
            assert world.asked.wait(30)
        assert connect().recv(12) == b"HTTP/1.1 503", "all have requests under way"
        world.hold(False)
        assert [each.recv(12) for each in busy] == [b"HTTP/1.1 200"] * 2
    world.close()


def test_no_text_for_recipients_names_a_path_or_a_key(world: World) -> None:
    table = world.table("ORDERS")
    table.append([("o.de", 1)])
    token = world.token("ORDERS")
    log = table.path / "_delta_log" / f"{1:020d}.json"
    log.write_text("{ damaged")
    answer = world.query("ORDERS", token)
    assert answer.error == (503, "SERVICE_UNAVAILABLE")
    assert str(world.lake) not in answer.body.decode()
