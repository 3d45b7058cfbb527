"""Tests of streams of one name in several accounts, and from before accounts: each has a table of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from typer.testing import CliRunner

from lakestream.cli.app import app
from lakestream.lake.storage import paths
from tests.lake import tables
from tests.lake.test_end_to_end import Compaction
from tests.pairs import PASSWORD
from tests.servers import Kind, Server

pytestmark = pytest.mark.lake

LAKE = 'lake { seal_bytes: 4096, seal_age: "200ms", retain_bytes: 0, poll: "100ms", staged_grace: 0 }\n'
ACCOUNTS = """\
accounts {
  A { users: [{user: a, password: p}], jetstream: enabled }
  "B_C" { users: [{user: b, password: p}], jetstream: enabled }
}
"""
COUNTS = {"$G": 30, "A": 50, "B_C": 20}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Yield a server, without accounts at first."""
    server = Server(Kind.OURS, tmp_path / "store", config=LAKE)
    server.start()
    yield server
    server.kill()


async def _client(server: Server, account: str) -> Client:
    if account == "$G":
        return await nats.connect(server.url)
    return await nats.connect(server.url, user=account[0].lower(), password=PASSWORD)


async def _filled(server: Server, account: str) -> None:
    client = await _client(server, account)
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s.*"], allow_direct=True)
    for number in range(COUNTS[account]):
        await js.publish(f"s.{number % 3}", _payload(account, number), headers={"Account": account})
    await js.delete_msg("S", 2)
    flushed = json.loads((await client.request("$LAKE.API.FLUSH.S", timeout=30)).data)
    assert (flushed["account"], flushed["last_seq"]) == (account, COUNTS[account])
    await client.close()


def _payload(account: str, number: int) -> bytes:
    return f"{account} {number} ".encode() + bytes(range(200))


def _rows(lake: str, account: str) -> dict[int, bytes]:
    return {row.seq: row.data for row in tables.records(paths.table(lake, "S", account))}


def _below(lake: str, account: str) -> str:
    """Return the path of an account's table below the lake, which is its name in queries."""
    return str(Path(paths.table(lake, "S", account)).relative_to(lake))


def _expected(account: str) -> dict[int, bytes]:
    return {seq: _payload(account, seq - 1) for seq in range(1, COUNTS[account] + 1) if seq != 2}


def _command(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


async def test_each_accounts_stream_has_its_own_table(spark: Any, server: Server) -> None:
    compaction = Compaction(spark, server)
    lake = compaction.lake
    await _filled(server, "$G")
    server.stop()
    server.config = LAKE + ACCOUNTS
    server.start()
    for account in ("A", "B_C"):
        await _filled(server, account)
    await compaction.run()
    assert {one: _rows(lake, one) for one in COUNTS} == {one: _expected(one) for one in COUNTS}
    assert [_below(lake, one) for one in COUNTS] == ["streams/S", "accounts/A/streams/S", "accounts/B_C/streams/S"]
    await _what_is_in_the_table_is_read_by_its_account(server)
    await _sql_names_the_account(server, lake)
    await _a_stream_is_restored_from_its_account(server, lake)
    await _a_deleted_stream_leaves_the_others(server, compaction)
    compaction.stop()


async def _what_is_in_the_table_is_read_by_its_account(server: Server) -> None:
    for account in ("A", "B_C"):
        client = await _client(server, account)
        js = client.jetstream()
        for seq in (1, 3, COUNTS[account]):
            message = await js.get_msg("S", seq)
            assert message.data == _payload(account, seq - 1)
            assert message.headers == {"Account": account}
        await client.close()


async def _sql_names_the_account(server: Server, lake: str) -> None:
    for account, user in (("A", "a"), ("B_C", "b")):
        client = await _client(server, account)
        await client.jetstream().publish("s.9", b"a moment ago")
        await client.close()
        COUNTS[account] += 1
        query = f"SELECT count(*) AS n FROM delta.`{_below(lake, account)}`"
        login = ("--user", user, "--password", PASSWORD)
        code, out, said = await asyncio.to_thread(_command, "sql", "--lake", lake, "-f", "json", "-q", query, *login)
        assert (code, json.loads(out), said) == (0, [{"n": COUNTS[account] - 1}], "")
    query = "SELECT count(*) AS n FROM delta.`streams/S`"
    for login in ((), ("--user", "a", "--password", PASSWORD)):
        code, out, said = await asyncio.to_thread(_command, "sql", "--lake", lake, "-f", "json", "-q", query, *login)
        assert (code, json.loads(out)) == (0, [{"n": COUNTS["$G"] - 1}])
        # Another account's stream of the same name is not queried instead.
        assert ("asked by a user of account A; log in as one of account $G" in said) == bool(login)


async def _a_stream_is_restored_from_its_account(server: Server, lake: str) -> None:
    url = server.url.replace("://", f"://a:{PASSWORD}@")
    arguments = ("restore", "--stream", "S", "--as-of", "2100-01-01", "--lake", lake, "--server", url)
    code, out, said = await asyncio.to_thread(_command, *arguments, "--account", "A", "--to", "OLD")
    assert code == 0, said
    assert out.startswith(f"OLD: {COUNTS['A'] - 1} messages of S")
    client = await _client(server, "A")
    js = client.jetstream()
    assert (await js.stream_info("OLD")).state.messages == COUNTS["A"] - 1
    assert (await js.get_msg("OLD", 3)).data == _payload("A", 2)
    await js.delete_stream("OLD")
    await client.close()


async def _a_deleted_stream_leaves_the_others(server: Server, compaction: Compaction) -> None:
    client = await _client(server, "A")
    await client.jetstream().delete_stream("S")
    await client.close()
    await compaction.run()
    other = await _client(server, "B_C")
    js = other.jetstream()
    assert (await js.stream_info("S")).state.messages == COUNTS["B_C"] - 1
    assert (await js.get_msg("S", 1)).data == _payload("B_C", 0)
    await js.publish("s.1", b"goes on")
    await other.close()
    rows = _rows(compaction.lake, "$G")
    assert rows == _expected("$G")
