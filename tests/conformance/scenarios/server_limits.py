"""Scenarios of server storage limits: reservations, and refusals once too much is stored (docs/internals/errors.md)."""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import Script, configured

LIMITED = "jetstream { max_memory_store: 2000, max_file_store: 2000 }\n"
NARROW = "jetstream { limits { duplicate_window: '30s', max_ack_pending: 10, max_request_batch: 5 } }\n"

STORAGES = ("memory", "file")


def _config(name: str, storage: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "subjects": [name.lower()], "storage": storage, **more}


@configured(LIMITED)
def reservations(t: Script) -> None:
    for storage in STORAGES:
        t.api("STREAM.CREATE.D", _config("D", storage))
        t.api("STREAM.CREATE.A", _config("A", storage, max_bytes=3000))
        t.api("STREAM.CREATE.A", _config("A", storage, max_bytes=1500))
        t.api("STREAM.CREATE.B", _config("B", storage, max_bytes=1500))
        t.api("STREAM.CREATE.B", _config("B", storage, max_bytes=500))
        t.api("STREAM.CREATE.C", _config("C", storage))
        t.api("STREAM.UPDATE.C", _config("C", storage, max_bytes=1))
        t.api("STREAM.UPDATE.A", _config("A", storage, max_bytes=1500, description="same"))
        t.api("STREAM.UPDATE.D", _config("D", storage, description="none"))
        t.api("STREAM.UPDATE.A", _config("A", storage, max_bytes=1501))
        t.api("STREAM.UPDATE.A", _config("A", storage, max_bytes=100))
        t.api("STREAM.UPDATE.D", _config("D", storage, max_bytes=1400))
        t.api("STREAM.UPDATE.D", _config("D", storage, max_bytes=1401))
        t.api("STREAM.UPDATE.D", _config("D", storage))
        for name in t.api("STREAM.NAMES")["streams"]:
            t.setup(f"STREAM.DELETE.{name}")


def _fill_up(t: Script, storage: str) -> None:
    t.stream("S", ["s"], storage=storage)
    t.stream("T", ["t"], storage=storage)
    for _ in range(9):
        t.publish("s", b"x" * 300)
    t.state("S")


def _too_much_is_stored(t: Script, storage: str) -> None:
    _fill_up(t, storage)
    t.publish("t", b"x")
    t.publish("t", b"x", {"Nats-Msg-Id": "a"})
    t.publish("t", b"x", {"Nats-Expected-Last-Sequence": "5"})
    t.api("STREAM.CREATE.C", _config("C", storage))
    t.api("STREAM.UPDATE.S", _config("S", storage, max_msgs=100))
    t.api("STREAM.MSG.DELETE.S", {"seq": 1})
    t.publish("s", b"x")
    t.api("STREAM.PURGE.S", {"keep": 1})
    t.publish("s", b"x")
    t.publish("t", b"x", {"Nats-Msg-Id": "a"})
    t.state("S")
    t.state("T")


@configured(LIMITED)
def too_much_is_stored_in_memory(t: Script) -> None:
    _too_much_is_stored(t, "memory")


@configured(LIMITED)
def too_much_is_stored_in_files(t: Script) -> None:
    _too_much_is_stored(t, "file")


@configured(LIMITED)
def one_storage_does_not_fill_the_other(t: Script) -> None:
    for storage, other in (STORAGES, STORAGES[::-1]):
        _fill_up(t, storage)
        t.stream("O", ["o"], storage=other)
        t.publish("o", b"x")
        for name in "STO":
            t.setup(f"STREAM.DELETE.{name}")


@configured(LIMITED)
def deleting_a_stream_makes_room(t: Script) -> None:
    _fill_up(t, "memory")
    t.publish("t", b"x")
    t.setup("STREAM.DELETE.S")
    t.publish("t", b"x")


@configured(LIMITED)
def replacing_makes_no_room_before_it_is_stored(t: Script) -> None:
    t.stream("S", ["s.*"], max_msgs_per_subject=1, allow_rollup_hdrs=True)
    for n in range(8):
        t.publish(f"s.{n}", b"x" * 300)
    t.publish("s.0", b"x")
    t.publish("s.0", b"x", {"Nats-Rollup": "all"})
    t.state("S")


@configured(LIMITED)
def members_of_a_stream_that_refuses(t: Script) -> None:
    t.stream("S", ["s"], max_msg_size=10)
    t.stream("T", ["t"])
    for _ in range(8):
        t.publish("t", b"x" * 300)
    t.publish("s", b"x" * 11)
    t.publish("s", b"x")


@configured(NARROW)
def limits_of_the_server_for_streams(t: Script) -> None:
    for window in (0, 10, 30, 31, 120):
        t.api("STREAM.CREATE.S", _config("S", "memory", duplicate_window=window * 1_000_000_000))
        t.api("STREAM.CREATE.S", _config("S", "memory", duplicate_window=window * 1_000_000_000, pedantic=True))
        t.api("STREAM.UPDATE.S", _config("S", "memory", duplicate_window=40 * 1_000_000_000))
        t.wire.api("STREAM.DELETE.S")
