"""Record the store that this checkout's server writes: `python -m tests.stored.record NAME …`.

A recording is added, under a new name, when the formats on disk gain something. Existing recordings stay, because
stores like them are in use, and are not overwritten.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.cluster.nodes import Cluster
from tests.servers import Kind, Server
from tests.stored import accounts, at_rest, cluster, encrypted, lake, standalone, typed
from tests.stored.facts import asked, known
from tests.stored.recordings import archive, pack
from tests.wire import Wire, pub

PROGRESS_S = 1.0
"""Maximum delay between a delivery and its log entry."""


def record_standalone(root: Path, stopped: bool) -> dict[str, Any]:
    """Write a store with a checkpoint and a log tail behind it, by a server that is stopped, or killed."""
    with running(root, standalone.CONFIG) as server:
        with Wire(server.address, timeout=30) as wire:
            standalone.fill(wire, server.url)
            standalone.wait_copied(wire, *standalone.COPIES)
        server.stop()
        server.start()
        with Wire(server.address, timeout=30) as wire:
            standalone.go_on(wire, 10)
            standalone.wait_copied(wire, *standalone.COPIES)
            time.sleep(PROGRESS_S)
            facts = standalone.facts(server)
            standalone.start_passing(wire)
            time.sleep(PROGRESS_S)
        if stopped:
            assert server.stop() == 0
        return facts


SEALED = 'jetstream { key: "recorded", cipher: aes }\nlake: false\n'
"""Configuration with the key of the encrypted store."""


def record_sealed(root: Path) -> dict[str, Any]:
    """Write an encrypted store with files of both ciphers, by a server that is killed after a change of its key."""
    before = 'jetstream { key: "before" }\nlake: false\n'
    with running(root, before) as server:
        for config in (before, SEALED.replace("cipher", 'prev_key: "before", cipher')):
            server.stop()
            server.config = config
            server.start()
            with Wire(server.address, timeout=30) as wire:
                asked(wire, "STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_direct": True})
                for number in range(50):
                    wire.request(f"s.{number % 5}", b"message %d" % number)
        server.kill()
        return {"messages": 100}


def record_ids(root: Path) -> dict[str, Any]:
    """Write a store whose checkpoint has blocks of message ids, with ids in the log behind it, by a server that is
    killed."""
    with running(root, standalone.IDS_CONFIG) as server:
        for first, last in ((0, standalone.OLDER_IDS), (standalone.OLDER_IDS, standalone.ALL_IDS)):
            with Wire(server.address, timeout=30) as wire:
                if not first:
                    config = {"name": "IDS", "subjects": ["i"], "max_msgs": 1, "duplicate_window": standalone.CENTURY}
                    asked(wire, "STREAM.CREATE.IDS", config)
                wire.send(b"".join(standalone.with_id(number) for number in range(first, last)))
                wire.ping()
                assert asked(wire, "STREAM.INFO.IDS")["state"]["last_seq"] == last
            if not first:
                assert server.stop() == 0
                server.start()
        time.sleep(PROGRESS_S)
        server.kill()
        return {"ids": standalone.ALL_IDS}


def record_created(root: Path, written: bool = False) -> dict[str, Any]:
    """Write a store whose newest streams are in the journal of new streams alone, as after a power loss.

    `written`: each has a consumer and a message, too.
    """
    with running(root, "") as server, Wire(server.address, timeout=30) as wire:
        names = [f"NEW{at}" for at in range(3)]
        for name in names:
            asked(wire, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
            if written:
                config = {"durable_name": "c", "ack_policy": "explicit"}
                asked(wire, f"CONSUMER.CREATE.{name}.c", {"stream_name": name, "config": config})
                assert b'"seq":1' in wire.request(f"{name}.x", b"first").data
        server.kill()
        streams = root / "store" / "jetstream" / "$G" / "streams"
        shutil.rmtree(streams / names[1])
        os.truncate(next((streams / names[2] / "log").iterdir()), 0)
        (root / "store" / "lake.id").unlink()  # it names the root
        return {"streams": names}


def record_together(root: Path) -> dict[str, Any]:
    """Write a store whose newest messages, of several streams at once, are in the journal alone, as after a power
    loss."""
    with running(root, "") as server, Wire(server.address, timeout=30) as wire:
        names = [f"T{at}" for at in range(4)]
        for name in names:
            asked(wire, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
            wire.request(f"{name}.x", b"first")
        streams = root / "store" / "jetstream" / "$G" / "streams"
        segments = [next((streams / name / "log").iterdir()) for name in names]
        while not all((streams / name / "synced").exists() for name in names):
            time.sleep(0.1)  # all is settled then
        settled = [len(segment.read_bytes().rstrip(b"\0")) for segment in segments]
        wire.send(b"".join(pub(f"{name}.x", b"together %d" % number) for number in range(50) for name in names))
        wire.ping()
        while any(asked(wire, f"STREAM.INFO.{name}")["state"]["messages"] < 51 for name in names):
            time.sleep(0.01)
        server.kill()
        for segment, length in zip(segments, settled, strict=True):
            os.truncate(segment, length)
        (root / "store" / "lake.id").unlink()  # it names the root
        return {"streams": names, "messages": 51}


def record_accounts(root: Path) -> dict[str, Any]:
    """Write a store of two accounts, by a server that is killed."""
    with running(root, accounts.CONFIG) as server:
        accounts.fill(server)
        time.sleep(PROGRESS_S)
        return accounts.facts(server)


def record_cluster(root: Path) -> dict[str, Any]:
    """Write the stores of three nodes: one is killed before the others store more, then one is stopped, one killed."""
    nodes = Cluster(Kind.OURS, root, config=cluster.CONFIG)
    try:
        nodes.start()
        cluster.fill(nodes)
        # the only replica of ONE has to stay
        lost = next(node for node in nodes.nodes if node is not nodes.stream_leader("ONE"))
        lost.kill()
        nodes.wait_ready()
        cluster.go_on(nodes)
        time.sleep(PROGRESS_S)
        facts = cluster.facts(nodes)
        time.sleep(PROGRESS_S)
        stopped, killed = nodes.running
        assert stopped.stop() == 0
        killed.kill()
    finally:
        nodes.kill()
    for node in nodes.nodes:
        (root / f"{node.name}.conf").unlink()
    return {"streams": facts, "lost": lost.name}


def record_lake(root: Path) -> dict[str, Any]:
    """Write a store with its lake, of which a part is compacted, by a server that is killed."""
    directory = root / "store" / "lake"
    with running(root, lake.CONFIG) as server:
        lake.fill(server, directory)
        server.stop()
        server.config = lake.UNSEALED
        server.start()
        with Wire(server.address, timeout=60) as wire:
            lake.leave(wire, directory)
        time.sleep(PROGRESS_S)
        facts = lake.facts(server, directory) | {"past": lake.past(server)}
    lake.leave_owing(directory)
    return {**facts, "prices": lake.prices(directory)}


def record_at_rest(root: Path) -> dict[str, Any]:
    """Write a store with its lake, with indexed outlines and streams at rest, by a server that is stopped."""
    with running(root, at_rest.CONFIG) as server:
        at_rest.fill(server, root / "store" / "lake")
        with Wire(server.address, timeout=60) as wire:
            facts = known(wire)
        assert server.stop() == 0
    return {"streams": facts}


def record_typed(root: Path) -> dict[str, Any]:
    """Write a store with a stream whose messages have different schemas, by a server that is killed."""
    with running(root, typed.CONFIG) as server:
        return {"versions": typed.fill(server)}


def record_letters(root: Path) -> dict[str, Any]:
    """Write a store whose misfits were sent, and a lake that lists another one, by a server that is killed."""
    with running(root, lake.CONFIG) as server:
        return typed.fill_letters(server, root / "store" / "lake")


def record_encrypted(root: Path) -> dict[str, Any]:
    """Write an encrypted store with its encrypted lake, of which a part is compacted, by a server that is killed."""
    with running(root, encrypted.CONFIG) as server:
        encrypted.fill(server, root / "store" / "lake")
        server.kill()
        return {"messages": encrypted.ALL}


@contextlib.contextmanager
def running(root: Path, config: str) -> Iterator[Server]:
    """Start a server over `root`/store; kill it at the end if it still runs."""
    server = Server(Kind.OURS, root / "store", config=config)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        (root / "store.conf").unlink()
        (root / "store" / "lake.id").unlink(missing_ok=True)  # it has the lake's absolute path


RECORDERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "standalone-stopped": functools.partial(record_standalone, stopped=True),
    "standalone-killed": functools.partial(record_standalone, stopped=False),
    "standalone-created": record_created,
    "standalone-created-written": functools.partial(record_created, written=True),
    "standalone-together": record_together,
    "standalone-ids": record_ids,
    "sealed": record_sealed,
    "accounts": record_accounts,
    "cluster": record_cluster,
    "lake": record_lake,
    "at-rest": record_at_rest,
    "typed": record_typed,
    "typed-letters": record_letters,
    "encrypted": record_encrypted,
}


def main(wanted: list[str]) -> None:
    """Make the recordings with these names; refuse names that exist."""
    for name in wanted:
        if archive(name).exists():
            sys.exit(f"{archive(name)} is there and stays; give a new recording a name of its own in RECORDERS")
        with tempfile.TemporaryDirectory(prefix="recording-") as directory:
            root = Path(directory, "data")
            root.mkdir()
            facts = RECORDERS[name](root)
            print(f"{name}: {pack(name, root, facts):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:] or list(RECORDERS))
