"""Tests of lakes whose server and compactor are of different releases, upgraded and brought back under load.

What one release writes into a lake (segments, tables and their deletion vectors, clones, notes of erasures, locks) the
other reads right, or refuses with one line before it changes anything.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lakestream.lake.staging import scan, staging
from lakestream.lake.storage.lake import open_storage
from lakestream.log.sealing.keys import VARIABLE
from tests.chaos.audit import read_all
from tests.conftest import StartServer
from tests.lake.compacting import compact
from tests.lake.test_compact_job import Job
from tests.releases import RELEASES, Release, files_of, unpacked
from tests.servers import Kind, Server
from tests.stored import lake as stored
from tests.stored.facts import asked
from tests.upgrades.walk import Walk
from tests.wire import Wire

pytestmark = pytest.mark.lake

CONFIG = 'lake { seal_bytes: 16k, seal_age: "1s", retain_bytes: 0, poll: "100ms", staged_grace: 0 }\n'


@pytest.fixture(params=RELEASES, ids=lambda name: name.replace(" ", "-"))
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Release:
    """Return an older program."""
    return unpacked(request.param, tmp_path / "older")


@pytest.mark.timeout(3600)
def test_server_and_compactor_are_upgraded_and_brought_back_under_load_and_kills(
    older: Release, tmp_path: Path
) -> None:
    """`python -m tests.upgrades` has more streams, and the compactor first, too."""
    result = Walk(older, tmp_path, streams=("EVENTS", "MANY", "BY_TIME"), steps=4).run()
    assert not result.broken, result
    print(result)


KEY = "key of the tests"


@pytest.mark.parametrize("older", ["before issue 40"], indirect=True)
def test_an_older_compactor_leaves_encrypted_streams_alone(
    older: Release, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the format 2 of `stream.json` it would write their messages into plain files."""
    monkeypatch.setenv(VARIABLE, KEY)
    config = f'jetstream {{ key: "{KEY}" }}\n{CONFIG.replace("{", "{ encryption: parquet,", 1)}'
    server = start_server(of=Kind.OURS, config=config)
    lake = server.store / "lake"
    with Wire(server.address, timeout=60) as wire:
        asked(wire, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        for _ in range(30):
            assert b'"seq"' in wire.request("s", b"secret").data
    stored.until(lambda: list(lake.glob("segments/S/*/*.seg")), "a staged segment")
    server.stop()
    before = files_of(lake / "segments")
    program = [sys.executable, str(older.job)]
    job = Job(lake, "--interval", "0.5", program=program, environment=older.environment)
    try:
        job.wait_for("its segments are not compacted")
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == 0, job.lines
    finally:
        job.kill()
    (line,) = [line for line in job.lines if "/segments/S/" in line]
    assert "stream.json is damaged" in line
    assert files_of(lake / "segments") == before
    assert not (lake / "streams").exists()


SCAN = """
import json, sys
try:
    from lakestream.lake.staging.scan import Scanner
except ImportError:  # 0.1.0
    from lakestream.lake.files.scan import Scanner
scanner = Scanner(sys.argv[1])
print(json.dumps([[each.identity.name for each in scanner.scan()], list(scanner.troubles.values())]))
"""


@pytest.mark.smoke
def test_an_older_compactor_names_the_streams_that_it_leaves_alone(older: Release, lake: Path) -> None:
    """The part of the programs that looks for streams, without Spark."""
    storage = open_storage(str(lake))
    for name, is_sealed in (("PLAIN", False), ("SEALED", True)):
        identity = staging.StreamIdentity(name, "$G", "uid", 1, sealed_segments=is_sealed)
        staging.introduce(storage, staging.directory_of(str(lake), identity), identity)
    before = files_of(lake)
    command = [sys.executable, "-P", "-c", SCAN, str(lake)]
    done = subprocess.run(command, env={**os.environ, **older.environment}, capture_output=True, check=True)
    found, troubles = json.loads(done.stdout)
    assert found == ["PLAIN"]
    assert [line.partition(": ")[0] for line in troubles] == [
        f"{lake}/segments/SEALED/uid/stream.json is damaged (Object missing required field `name`)"
    ]
    assert files_of(lake) == before


@pytest.mark.parametrize("older", ["0.1.0"], indirect=True)
def test_an_older_server_reads_what_this_compactor_has_written(spark: Any, older: Release, tmp_path: Path) -> None:
    """A deletion vector among it. Then this server goes on with its store."""
    server = Server(Kind.OURS, tmp_path / "store", config=stored.CONFIG, environment=older.environment)
    lake = str(server.store / "lake")
    expected = {seq: b"%d" % seq for seq in range(1, 61)}
    try:
        server.start()
        with Wire(server.address, timeout=60) as wire:
            asked(wire, "STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"], "allow_direct": True})
            for first in (1, 31):
                for seq in range(first, first + 30):
                    assert b'"seq"' in wire.request(f"s.{seq % 2}", expected[seq]).data
                if first > 1:
                    asked(wire, "STREAM.MSG.DELETE.S", {"seq": 7})
                last = asked(wire, "STREAM.INFO.S")["state"]["last_seq"]
                stored.until(lambda last=last: compacted(spark, lake) >= last, "all in the table")
        del expected[7]
        for _ in range(2):
            stored.until(lambda: stored.released(server, "S"), "messages in the table alone")
            with Wire(server.address, timeout=60) as wire:
                assert {each.seq: each.data for each in read_all(wire, "S")} == expected
            assert server.stop() == 0
            server.environment = {}
            server.start()
    finally:
        server.kill()
    assert {row.seq: row.data for row in stored.tables.records(f"{lake}/streams/S")} == expected


def compacted(spark: Any, lake: str) -> int:
    """Compact what is staged; return the last sequence in the table."""
    for stream in scan.Scanner(lake).scan():
        if staging.segments(stream.directory):
            compact(spark, lake, stream)
    return stored.in_table(Path(lake), "S")
