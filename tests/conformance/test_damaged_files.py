"""Tests of a killed server that starts again with damaged files: other streams serve, and the log names each damage.

tests/unit/meta/test_start_damage.py covers all kinds of files and damages; here are several at once, in real servers,
alone and as a node of a cluster.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakestream.log.store import synced
from tests.cluster.nodes import free_ports, until
from tests.servers import Kind, Server, StartFailed
from tests.wire import Wire

pytestmark = pytest.mark.conformance

MESSAGES = 20
CLUSTER = "cluster {{ name: TESTS, listen: '127.0.0.1:{}' }}"


@pytest.fixture(params=["alone", "in a cluster"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    config = CLUSTER.format(free_ports(1)[0]) if request.param == "in a cluster" else None
    server = Server(Kind.OURS, tmp_path / "store", config=config)
    server.start()
    yield server
    server.kill()


def log_of(directory: Path) -> Path:
    return max((directory / "log").glob("*.seg"))


def frames_end(directory: Path) -> int:
    """Return the end of a log's frames, behind which the killed server left zeros."""
    return len(log_of(directory).read_bytes().rstrip(b"\0"))


def cut(directory: Path) -> None:
    os.truncate(log_of(directory), frames_end(directory) - 30)


def zeros(directory: Path) -> None:
    end = frames_end(directory)
    with open(log_of(directory), "r+b") as file:
        file.seek(end - 30)
        file.write(bytes(30))


def no_log(directory: Path) -> None:
    log_of(directory).unlink()


def log_is_a_file(directory: Path) -> None:
    shutil.rmtree(directory / "log")
    (directory / "log").write_bytes(b"x")


def garbage(directory: Path) -> None:
    log_of(directory).write_bytes(bytes(range(250)) * 40)


def checkpoint(directory: Path) -> None:
    (directory / "checkpoint").write_bytes(b"?")


def leftover(directory: Path) -> None:
    directory.rename(f"{directory}.deleted-5-owing")


def identity(directory: Path) -> None:
    shutil.rmtree(directory / "replica", ignore_errors=True)
    (directory / "replica").unlink(missing_ok=True)
    (directory / "replica").mkdir()


def hard_state(directory: Path) -> None:
    (directory / "raft").write_bytes(b"?" * 40000)


def incoming(directory: Path) -> None:
    """Create a directory beside a damaged replica that is not a snapshot from another node."""
    hard_state(directory)
    Path(f"{directory}.incoming").write_bytes(b"x")


REPLICAS = {each.__name__: each for each in (identity, hard_state, incoming)}
DAMAGES: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (cut, zeros, no_log, log_is_a_file, garbage, checkpoint, leftover)
}


def test_invariant_the_other_streams_serve(server: Server) -> None:
    cluster = server.config is not None
    damages = {**DAMAGES, **REPLICAS} if cluster else DAMAGES
    with Wire(server.address) as wire:
        if cluster:
            until(lambda: "error" not in wire.api("STREAM.LIST"), "the cluster's first leader")
        for name in ("good", *damages):
            assert "error" not in wire.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.x"]})
            for number in range(MESSAGES):
                wire.request(f"{name}.x", b"%d" % number)
    streams = server.store / "jetstream/$G/streams"
    if not cluster:
        until(lambda: all((streams / name / synced.NAME).exists() for name in damages), "the synced marks")
        until(lambda: marks_are_up_to_date(streams), "the marks of everything")
    server.kill()
    for name, damage in damages.items():
        damage(streams / name)
    server.start()
    with Wire(server.address) as wire:
        until(lambda: "error" not in wire.api("STREAM.INFO.good"), "the good stream")
        assert wire.api("STREAM.INFO.good")["state"]["messages"] == MESSAGES
        assert b'"seq":%d' % (MESSAGES + 1) in wire.request("good.x", b"more").data
    said = [line for line in server.log().splitlines() if "[ERR]" in line or "[WRN]" in line]
    for name in damages:
        # On the only node of a cluster, missing committed entries are damage of the log according to its file `raft`.
        assert any(f"/{name}" in line or f"stream {name}" in line for line in said), (name, said)
    assert "Traceback" not in server.log()


def marks_are_up_to_date(streams: Path) -> bool:
    """Return True if every log has one entry per message and one for its creation."""
    from lakestream.log.format.files import Files

    return all(
        synced.MarkFile(Files(), str(each)).read().index == MESSAGES + 1 for each in streams.iterdir() if each.is_dir()
    )


def test_a_store_that_cannot_be_used_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    server = Server(Kind.OURS, tmp_path / "store")
    server.start()
    server.stop()
    version = server.store / "jetstream/VERSION"
    version.write_bytes(b"")
    with pytest.raises(StartFailed):
        server.start()
    (line,) = [line for line in server.log().splitlines() if "[FTL]" in line]
    assert str(version) in line
    assert "write 1 into that file" in line
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("name", ["raft", "log"])
def test_a_damaged_log_of_the_cluster_is_one_line_that_says_what_to_do(tmp_path: Path, name: str) -> None:
    server = Server(Kind.OURS, tmp_path / "store", config=CLUSTER.format(free_ports(1)[0]))
    server.start()
    with Wire(server.address) as wire:
        until(lambda: "error" not in wire.api("STREAM.LIST"), "the cluster's first leader")
    server.kill()
    damaged = server.store / "jetstream/_meta_" / name
    if damaged.is_dir():
        shutil.rmtree(damaged)
        damaged.write_bytes(b"x")
    else:
        damaged.write_bytes(b"?" * 100)
    with pytest.raises(StartFailed):
        server.start()
    (line,) = [line for line in server.log().splitlines() if "[FTL]" in line]
    assert str(damaged) in line
    assert "Traceback" not in server.log()
