"""Tests of processes that answer queries: a lake that stops answering."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakestream.ops.sql.processes import Process, ProcessQueryFailed
from lakestream_sql.pool import start

pytestmark = pytest.mark.unit


@pytest.mark.heavy
def test_a_lake_that_stops_answering_is_named_and_another_process_takes_the_next_query(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "streams" / "S", pa.table({"seq": [1]}))

    async def ask(process: Process) -> list[list[int]]:
        ask = {"query": "SELECT seq FROM delta.`streams/S`", "max_rows": 1, "form": "rows"}
        await process.say(ask | {"batch_bytes": 1000, "max_batch_bytes": 1000})
        assert json.loads(await process.hear())["streams"] == ["S"]
        await process.say({"go": True})
        assert [each["name"] for each in json.loads(await process.hear())["columns"]] == ["seq"]
        await process.say({"go": True})
        found = [json.loads(line) for line in (await process.hear()).splitlines()]
        await process.say({"go": True})
        assert json.loads(await process.hear()) == {"rows": 1, "truncated": False}
        return found

    async def run() -> None:
        process = await start(str(tmp_path), "$G", memory=512 << 20, threads=2)
        assert await ask(process) == [[1]]
        os.mkfifo(file := tmp_path / "_lake.json")  # whoever reads it waits
        said = r"the lake does not answer: reading the lake/_lake\.json"
        with pytest.raises(ProcessQueryFailed, match=said) as raised:
            await ask(process)
        assert (raised.value.code, raised.value.is_end) == (503, True)
        file.unlink()
        await process.kill()
        process = await start(str(tmp_path), "$G", memory=512 << 20, threads=2)
        assert await ask(process) == [[1]]
        await process.kill()

    asyncio.run(run())
