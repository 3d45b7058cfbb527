"""Tests of snapshots and restores with simulated clock and disk: flow, limits, and cleanup after a timeout."""

from __future__ import annotations

import asyncio
import io
import json
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.account.backup import archive, archive_tar, restores, snapshots
from lakestream.account.backup.archive import Archive, ArchiveError
from lakestream.account.backup.archive_tar import TarArchive
from lakestream.log.format.record import Record
from lakestream.meta.shared import RESTORES_AHEAD, RESTORES_READ
from lakestream.net.interest.subscription import Subscription
from lakestream.ports import Single
from lakestream.protocol import s2
from lakestream.stream.core.operations import CreateStream, Restored, Skip, decode_operation, encode
from tests.unit.api_world import ApiWorld
from tests.unit.stream_world import Inbox

pytestmark = pytest.mark.unit

SECOND = 1_000_000_000


class Receiver(Inbox):
    """Client that also keeps replies."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[bytes, bytes, bytes]] = []

    def receive(self, sub: Any, message: Single, client: Any) -> None:
        self.frames.append((message.reply, message.header, message.payload))


def listen(world: ApiWorld, subject: bytes) -> Receiver:
    receiver = Receiver()
    world.hub.join(Subscription(receiver, subject, b"", b"9"))
    return receiver


async def run(world: ApiWorld) -> None:
    """Run until nothing is left to do."""
    tasks = [asyncio.ensure_future(each) for each in world.clock.spawned]
    world.clock.spawned.clear()
    for _ in range(400):
        world.settle()
        tasks += [asyncio.ensure_future(each) for each in world.clock.spawned]
        world.clock.spawned.clear()
        await asyncio.sleep(0)
    for task in tasks:
        if task.done():
            task.result()


def message(seq: int, data: bytes = b"x", time_ns: int = 5) -> bytes:
    return archive.entry(b"r.1", time_ns, seq, b"", data)


def packed(*entries: bytes, **state: int) -> bytes:
    body = json.dumps({"messages": 0, "first_seq": 1, "last_seq": 0, **state}).encode()
    raw = [archive.MAGIC, archive.entry(archive.STATE_NAME, 1, body=body), *entries, archive.END]
    return s2.MAGIC + s2.encode(b"".join(raw))


async def restore(world: ApiWorld, data: bytes, name: str = "R", **config: Any) -> dict[str, Any]:
    to = world.ask(f"STREAM.RESTORE.{name}", {"config": {"name": name, "subjects": ["r.*"], **config}})
    reply = world.send(to["deliver_subject"], data)
    await run(world)
    assert world.answers(reply) == [(b"", b"")]
    reply = world.send(to["deliver_subject"])
    await run(world)
    [(_, body)] = world.answers(reply)
    outcome: dict[str, Any] = json.loads(body)
    return outcome


# ---------------------------------------------------------------------------- archives


@given(
    st.lists(st.tuples(st.integers(-(1 << 62), 1 << 62), st.binary(max_size=50), st.binary(max_size=300))),
    st.integers(1, 500),
)
def test_an_archive_is_read_as_it_was_written(messages: list[tuple[int, bytes, bytes]], step: int) -> None:
    records = [Record(seq, time, b"s", header, data) for seq, (time, header, data) in enumerate(messages, 1)]
    state = archive.entry(archive.STATE_NAME, 1, body=b"{}")
    data = archive.MAGIC + state + archive.messages(records) + archive.END
    found = Archive([data[at : at + step] for at in range(0, len(data), step)])
    assert list(found.messages()) == records


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(data: bytes) -> None:
    state = archive.entry(archive.STATE_NAME, 1, body=b'{"consumer_count":1}')
    for candidate in (data, archive.MAGIC + data, archive.MAGIC + state + data):
        try:
            list(Archive([candidate]).messages())
        except ArchiveError:
            continue


def test_an_entry_that_claims_too_much_is_refused() -> None:
    claims = b"\x01\x02" + b"\x01" + b"\x00" + b"\xff\xff\xff\xff\x7f" + b"s"
    state = archive.entry(archive.STATE_NAME, 1, body=b"{}")
    with pytest.raises(ArchiveError, match="invalid archive stream"):
        list(Archive([archive.MAGIC + state + claims]).messages())


def test_what_a_consumer_did_is_checked() -> None:
    wrong: tuple[dict[str, Any], ...]
    wrong = ({"pending": {"x": {}}}, {"redelivered": {"-1": 1}}, {"delivered": {"stream_seq": -1}}, {"pending": 1})
    for state in wrong:
        body = json.dumps({"config": {"name": "C"}, "state": state}).encode()
        head = archive.entry(archive.STATE_NAME, 1, body=b'{"consumer_count":1}')
        with pytest.raises(ArchiveError, match='failed to decode consumer "C" state'):
            Archive([archive.MAGIC + head + archive.entry(b"consumers/C", 1, body=body)])


def test_older_logs_know_nothing_of_restores() -> None:
    """Log entries of earlier releases decode without the restoring flag, new ones with it."""
    old = msgspec.msgpack.encode(
        {"type": "create_stream", "uid": "u", "account": "$G", "config": b"{}", "created_ns": 5}
    )
    assert decode_operation(old) == CreateStream("u", "$G", b"{}", 5, restoring=False)
    for operation in (CreateStream("u", "$G", b"{}", 5, restoring=True), Skip(7, 5), Restored()):
        assert decode_operation(encode(operation)) == operation


def tarred(files: dict[str, bytes]) -> bytes:
    """Return a tar file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def old_record(seq: int, subject: bytes = b"s", data: bytes = b"x", header: bytes = b"") -> bytes:
    """Return a record in the format of nats-server's message blocks."""
    inner = (len(header).to_bytes(4, "little") + header if header else b"") + data
    length = 22 + len(subject) + len(inner) + 8
    head = struct.pack("<IQqH", length | (1 << 31 if header else 0), seq, 5 * seq & 0xFFFF, len(subject))
    return head + subject + inner + bytes(8)


def old_archive(files: dict[str, bytes], **state: Any) -> TarArchive:
    return TarArchive(lambda: [tarred(files)], archive.ArchivedState(**state))


def test_blocks_of_older_releases_are_read() -> None:
    first = [old_record(1), old_record(2, b"s.t", b"", b"NATS/1.0\r\n\r\n"), old_record(3 | 1 << 63, b"", bytes(9))]
    second = [old_record(4), old_record(2**62 | 4, b"", b""), old_record(5), old_record(9)]
    files = {"meta.inf": b"{}", "msgs/1.blk": b"".join(first), "msgs/2.blk": b"".join(second), "msgs/index.db": b"?"}
    found = old_archive(files, first_seq=2, last_seq=5, messages=2)
    assert list(found.messages()) == [
        Record(2, 10, b"s.t", b"NATS/1.0\r\n\r\n", b""),
        Record(5, 25, b"s", b"", b"x"),
    ]
    with pytest.raises(ArchiveError, match="the blocks hold 2 messages and the state says 3"):
        old_archive(files, first_seq=2, last_seq=5, messages=3)


def test_consumers_of_older_releases_are_read() -> None:
    states = {
        bytes([22, 2, 2, 3, 9, 11, 1, 20, 3, 2, 4, 1, 1, 2]): ((9, 11), (2, 3), {"6": (4, 8 * SECOND)}, {"4": 2}),
        bytes([22, 1, 2, 3, 8, 9, 1, 20, 3, 4, 0]): ((9, 11), (2, 3), {"6": (0, 8 * SECOND)}, {}),
        b"": ((0, 0), (0, 0), {}, {}),
    }
    for data, (delivered, floor, pending, redelivered) in states.items():
        files = {"obs/C/meta.inf": b'{"Created":"x","Name":"C","durable_name":"C"}', "obs/C/o.dat": data}
        [found] = old_archive(files).consumers
        assert (found.name, json.loads(found.config)) == ("C", {"durable_name": "C"})
        state = found.state
        assert (state.delivered.consumer_seq, state.delivered.stream_seq) == delivered
        assert (state.ack_floor.consumer_seq, state.ack_floor.stream_seq) == floor
        assert {seq: (each.sequence, each.timestamp) for seq, each in state.pending.items()} == pending
        assert state.redelivered == redelivered


@given(st.binary(max_size=100), st.integers(0, 3))
def test_damaged_tars_do_no_harm(data: bytes, where: int) -> None:
    name = ("msgs/1.blk", "obs/C/meta.inf", "obs/C/o.dat", "else")[where]
    files = {"obs/C/meta.inf": b"{}", name: data}
    for whole in (tarred(files), tarred(files)[: 512 + len(data) // 2], tarred(files)[:512] + data):
        try:
            list(TarArchive(lambda whole=whole: [whole], archive.ArchivedState()).messages())  # type: ignore[misc]
        except ArchiveError:
            continue


def test_a_tar_that_ends_within_a_file_is_refused() -> None:
    with pytest.raises(ArchiveError, match="invalid archive"):
        TarArchive(lambda: [tarred({"msgs/1.blk": bytes(5000)})[: 512 + 21]], archive.ArchivedState())


# ---------------------------------------------------------------------------- restores


async def test_a_restored_stream_is_there_at_once_and_not_before() -> None:
    world = ApiWorld()
    to = world.ask("STREAM.RESTORE.R", {"config": {"name": "R", "subjects": ["r.*"]}})["deliver_subject"]
    world.send(to, packed(message(3), message(7)))
    await run(world)
    assert world.error("STREAM.INFO.R")[1] == 10059
    world.send(to)
    world.clock.turn()
    assert world.error("STREAM.INFO.R")[1] == 10059
    await run(world)
    state = world.state("R")
    assert (state["messages"], state["first_seq"], state["last_seq"], state["num_deleted"]) == (2, 3, 7, 3)
    assert world.publish("r.1", b"more")["seq"] == 8


async def test_nothing_is_left_of_an_archive_that_ends_early() -> None:
    world = ApiWorld()
    broken = packed(message(1), message(2), message(2))
    outcome = await restore(world, broken, storage="memory")
    assert outcome["error"]["description"] == "restore failed: message sequence 2 out of order"
    assert world.error("STREAM.INFO.R")[1] == 10059
    assert "error" not in await restore(world, packed(message(1)), storage="memory")
    assert world.state("R")["messages"] == 1


async def test_nothing_is_left_of_an_archive_that_breaks_behind_its_first_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restores, "PART_BYTES", 64)
    world = ApiWorld()
    broken = packed(*(message(seq) for seq in range(1, 50)), message(3))
    outcome = await restore(world, broken, storage="memory")
    assert outcome["error"]["description"] == "restore failed: message sequence 3 out of order"
    assert world.error("STREAM.INFO.R")[1] == 10059
    world.create("OTHER", subjects=["r.*"], storage="memory")


async def test_names_and_subjects_are_taken_while_messages_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restores, "PART_BYTES", 64)
    world = ApiWorld()
    to = world.ask("STREAM.RESTORE.R", {"config": {"name": "R", "subjects": ["r.*"], "storage": "memory"}})
    world.send(to["deliver_subject"], packed(*(message(seq) for seq in range(1, 20))))
    await run(world)
    world.send(to["deliver_subject"])
    task = asyncio.ensure_future(world.clock.spawned.pop())
    while not world.engine.node.meta.state.streams:
        world.settle()
        await asyncio.sleep(0)
    assert not world.engine.streams
    assert world.error("STREAM.CREATE.R", {"name": "R", "subjects": ["r.*"], "storage": "memory"})[1] == 10058
    assert world.error("STREAM.CREATE.O", {"name": "O", "subjects": ["r.1"], "storage": "memory"})[1] == 10065
    while not task.done():
        world.settle()
        await asyncio.sleep(0)
    assert world.state("R")["messages"] == 19


async def test_times_never_go_backwards_nor_beyond_now() -> None:
    world = ApiWorld()
    now = world.clock.time
    data = packed(message(1, time_ns=50), message(2, time_ns=40), message(3, time_ns=now + SECOND))
    await restore(world, data, storage="memory")
    assert [world.stream("R").store.time_of(seq) for seq in (1, 2, 3)] == [50, 50, now]


async def test_subjects_that_cannot_be_sent_are_refused() -> None:
    world = ApiWorld()
    for subject in (b"", b"a b", b"a..b", b"a\r\nb", b"x" * 5000):
        data = packed(archive.entry(subject, 5, 1))
        outcome = await restore(world, data, storage="memory")
        assert outcome["error"]["description"] == "restore failed: message sequence 1 has an invalid subject"


async def test_a_restore_that_stalls_is_given_up() -> None:
    world = ApiWorld()
    to = world.ask("STREAM.RESTORE.R", {"config": {"name": "R"}})["deliver_subject"]
    world.clock.advance(4 * SECOND)
    world.send(to, b"some")
    await run(world)
    world.clock.advance(4 * SECOND)
    assert world.answers(world.send(to, b"more")) == []  # accepted; its ack comes once it is written
    await run(world)
    for _ in range(3):
        world.clock.advance(3 * SECOND)
    assert world.answers(world.send(to, b"late")) == [(b"503", b"")]


async def test_restores_and_what_they_send_ahead_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restores, "MAX_RESTORES", 1)
    monkeypatch.setattr(restores, "MAX_AHEAD", 100)
    world = ApiWorld()
    to = world.ask("STREAM.RESTORE.R", {"config": {"name": "R"}})["deliver_subject"]
    assert world.error("STREAM.RESTORE.O", {"config": {"name": "O"}})[1] == 10062
    world.send(to, b"x" * 60)
    reply = world.send(to, b"x" * 60)
    await run(world)
    assert b"faster than they are acknowledged" in world.answers(reply)[0][1]
    assert "error" not in world.ask("STREAM.RESTORE.O", {"config": {"name": "O"}})


async def test_a_restore_larger_than_the_storage_is_refused() -> None:
    world = ApiWorld(max_file=100)
    to = world.ask("STREAM.RESTORE.R", {"config": {"name": "R"}})["deliver_subject"]
    reply = world.send(to, b"x" * 101)
    await run(world)
    assert json.loads(world.answers(reply)[0][1])["error"]["description"] == "restore failed: insufficient resources"


def zeros(blocks: int) -> bytes:
    """Return chunks of an S2 stream that decompress to `blocks` blocks of 4 MiB zeros; each takes some 20 bytes."""
    size = s2.MAX_BLOCK
    length = (size - 5 - 4 - (1 << 16)).to_bytes(3, "little")
    block = b"\x80\x80\x80\x02" + b"\x00\x00" + b"\x01\x01" + b"\x1d\x00" + length
    body = s2._masked(bytes(size)).to_bytes(4, "little") + block
    return (b"\x00" + len(body).to_bytes(3, "little") + body) * blocks


def peak_of(work: Callable[[], object]) -> int:
    """Return the peak of allocated bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_few_bytes_that_unpack_to_many_are_unpacked_a_block_at_a_time() -> None:
    packed = s2.MAGIC + zeros(12)
    assert len(packed) < 500
    found: list[int] = []
    peak = peak_of(lambda: found.extend(len(piece) for piece in archive.decoded([packed])))
    assert found == [s2.MAX_BLOCK] * 12
    assert peak < 5 * s2.MAX_BLOCK


def test_an_archive_that_unpacks_to_implausibly_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = s2.MAGIC + zeros(4)
    assert sum(map(len, archive.decoded([packed]))) == 4 * s2.MAX_BLOCK, "few bytes may unpack to anything"
    monkeypatch.setattr(archive, "MAX_FREE", 3 * s2.MAX_BLOCK)
    with pytest.raises(ArchiveError, match=r"implausible: .* bytes unpack to more than 10000 times as many"):
        list(archive.decoded([packed]))
    plain = s2.MAGIC + s2.encode(bytes(4 * s2.MAX_BLOCK))
    assert sum(map(len, archive.decoded([plain]))) == 4 * s2.MAX_BLOCK


async def test_what_a_backup_unpacks_to_counts_against_the_storage() -> None:
    world = ApiWorld(max_file=s2.MAX_BLOCK)
    outcome = await restore(world, s2.MAGIC + zeros(2))
    assert outcome["error"]["err_code"] == 10062
    assert outcome["error"]["description"].startswith("restore failed: ")
    assert "R" not in world.engine.streams


def test_a_block_of_older_releases_is_read_by_the_record() -> None:
    files = {"msgs/1.blk": b"".join(old_record(seq, data=bytes(1 << 20)) for seq in range(1, 41))}
    packed = tarred(files)
    pieces = [packed[at : at + (1 << 20)] for at in range(0, len(packed), 1 << 20)]
    seqs: list[int] = []

    def read() -> None:
        found = TarArchive(lambda: pieces, archive.ArchivedState(first_seq=1, last_seq=40, messages=40))
        seqs.extend(record.seq for record in found.messages())

    assert peak_of(read) < 12 << 20
    assert seqs == list(range(1, 41))


def test_a_header_of_a_tar_that_claims_much_is_refused() -> None:
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
        info = tarfile.TarInfo("x")
        info.type, info.size = kind, 1 << 30
        with pytest.raises(ArchiveError, match="a header is larger than 65536 bytes"):
            TarArchive(lambda info=info: [info.tobuf(), bytes(1 << 20)], archive.ArchivedState())  # type: ignore[misc]


def test_the_consumers_of_an_archive_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_KEPT", 1000)
    monkeypatch.setattr(archive_tar, "MAX_KEPT", 1000)
    config = json.dumps({"durable_name": "C", "description": "x" * 400}).encode()
    state = archive.ConsumerState()
    raw = archive.MAGIC + archive.entry(archive.STATE_NAME, 1, body=b'{"consumer_count":3}')
    raw += b"".join(archive.consumer(f"C{number}", 1, config, state) for number in range(3)) + archive.END
    with pytest.raises(ArchiveError, match="its consumers take more than"):
        Archive([raw])
    with pytest.raises(ArchiveError, match="its consumers take more than"):
        old_archive({f"obs/C{number}/meta.inf": config for number in range(3)})


async def test_few_archives_are_read_at_a_time_and_the_others_wait() -> None:
    world = ApiWorld()
    reading = world.engine.shared.restores.reading
    for _ in range(RESTORES_READ):
        await reading.acquire()
    to = world.ask("STREAM.RESTORE.R", {"config": {"name": "R", "subjects": ["r.*"]}})["deliver_subject"]
    world.send(to, packed(message(1), messages=1, last_seq=1))
    await run(world)
    reply = world.send(to)
    await run(world)
    assert world.answers(reply) == []
    reading.release()
    await run(world)
    [(_, answer)] = world.answers(reply)
    assert json.loads(answer)["state"]["messages"] == 1
    reading.release()
    assert reading._value == RESTORES_READ, "whoever was done made room"


async def test_what_all_restores_send_ahead_is_limited_together() -> None:
    world = ApiWorld()
    room = world.engine.shared.restores
    to = world.ask("STREAM.RESTORE.R", {"config": {"name": "R"}})["deliver_subject"]
    room.ahead = RESTORES_AHEAD - 100  # chunks of other restores
    world.send(to, b"x" * 60)
    reply = world.send(to, b"x" * 60)
    await run(world)
    assert b"faster than they are acknowledged" in world.answers(reply)[0][1]
    assert room.ahead == RESTORES_AHEAD - 100, "what it had sent counts no more"


# ---------------------------------------------------------------------------- snapshots


async def test_a_snapshot_waits_for_acks_and_then_gives_up() -> None:
    world = ApiWorld()
    world.fill(0, storage="memory")
    for number in range(20):
        world.publish("a.1", bytes([number]) * 1000)
    receiver = listen(world, b"to.me")
    world.ask("STREAM.SNAPSHOT.A", {"deliver_subject": "to.me", "chunk_size": 1024, "window_size": 4096})
    await run(world)
    assert len(receiver.frames) == 4
    reply = receiver.frames[0][0]
    world.send(reply.decode())
    world.send(reply.decode())  # an ack counts once
    await run(world)
    assert len(receiver.frames) == 5
    task = asyncio.ensure_future(run(world))
    world.clock.advance(snapshots.FLOW_WAIT_NS + 1)
    await task
    await run(world)
    assert receiver.frames[-1][1:] == (b"NATS/1.0 408 No Flow Response\r\n\r\n", b"")
    assert not world.hub.interest(reply)


async def test_a_snapshot_reads_what_only_the_lake_holds() -> None:
    world = ApiWorld()
    world.fill(10, storage="memory")
    world.to_lake("A", 6)
    receiver = listen(world, b"to.me")
    world.ask("STREAM.SNAPSHOT.A", {"deliver_subject": "to.me"})
    await run(world)
    data = b"".join(s2.Decoder().feed(b"".join(payload for _, _, payload in receiver.frames)))
    assert [record.data for record in Archive([data]).messages()] == [b"m%d" % number for number in range(1, 11)]


async def test_what_is_published_after_the_request_is_not_in_it() -> None:
    world = ApiWorld()
    world.fill(5, storage="memory")
    receiver = listen(world, b"to.me")
    world.ask("STREAM.SNAPSHOT.A", {"deliver_subject": "to.me"})
    world.publish("a.1", b"late")
    await run(world)
    data = b"".join(s2.Decoder().feed(b"".join(payload for _, _, payload in receiver.frames)))
    found = Archive([data])
    assert found.state.messages == 5
    assert len(list(found.messages())) == 5


async def test_a_stream_that_goes_ends_its_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "READ_MSGS", 2)
    world = ApiWorld()
    world.fill(10, storage="memory")
    receiver = listen(world, b"to.me")
    world.ask("STREAM.SNAPSHOT.A", {"deliver_subject": "to.me"})
    world.ask("STREAM.DELETE.A")
    await run(world)
    assert receiver.frames[-1][1] == b"NATS/1.0 500 the stream is not here any more\r\n\r\n"


async def test_snapshots_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOTS", 1)
    world = ApiWorld()
    world.fill(1, storage="memory")
    listen(world, b"to.me")
    world.ask("STREAM.SNAPSHOT.A", {"deliver_subject": "to.me"})
    assert world.error("STREAM.SNAPSHOT.A", {"deliver_subject": "to.me"})[1] == 10064
    await run(world)
    assert "error" not in world.ask("STREAM.SNAPSHOT.A", {"deliver_subject": "to.me"})
    await run(world)
