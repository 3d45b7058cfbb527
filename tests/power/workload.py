"""Workload of a recorded server and its lake: clients that record what they were told, a compactor, restarts.

Belongs here: the streams, the order of operations, and the recording that results.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.power.facts import NEVER, Message, Stream
from tests.power.journal import Journal, build
from tests.power.lake_job import LakeJob
from tests.servers import Kind, Server, configured
from tests.wire import Wire, pub

WINDOW = 16
TIMEOUT_S = 60.0
ACTIONS = 40  # of clients in a round, however long Spark takes
PAUSE_S = 0.1
CONFIG = """
lake { seal_bytes: 32k, seal_age: "300ms", retain_bytes: 0, poll: "100ms", staged_grace: 0 }
"""
DURABLE = "D"
HOUR_NS = 3_600_000_000_000

STREAMS: list[Stream] = [
    # Its mirror would answer direct gets from its own messages.
    Stream("ORDERS", {"subjects": ["ORDERS.*"], "allow_direct": False}, "ORDERS.1"),
    Stream("KV_conf", {"subjects": ["$KV.conf.>"], "max_msgs_per_subject": 1, "allow_rollup_hdrs": True,
                       "metadata": {"lakestream.time_travel": "1h"}}, "$KV.conf.probe"),
    Stream("MANY", {"subjects": ["MANY.*"], "compression": "s2", "metadata": {"lakestream.partition": "bucket:2"}},
           "MANY.probe"),
    Stream("LIMITED", {"subjects": ["LIMITED.*"], "max_msgs": 60, "metadata": {"lakestream.retention": "archive"}},
           "LIMITED.1"),
    Stream("GONE", {"subjects": ["GONE.*"], "metadata": {"lakestream.on_delete": "keep"}}),
    Stream("MIRROR", {"mirror": {"name": "ORDERS"}, "metadata": {"lakestream.clone": "always"}}),
]  # fmt: skip
SUBJECTS = {"ORDERS": 4, "KV_conf": 25, "MANY": 120, "LIMITED": 2, "GONE": 2}


class Member(msgspec.Struct):
    """Node of a recorded cluster with its store `name` below the root. `port`: for its routes."""

    name: str
    port: int = 0
    started_ns: int = NEVER
    removed_ns: int = NEVER


class Recording(msgspec.Struct):
    """Recorded workload in a directory: what clients were told, and the journal of file operations.

    `members`: nodes of the cluster; without any, a single server was recorded.
    """

    directory: str
    seed: int
    root: str
    root_inode: int
    streams: list[Stream]
    members: list[Member] = []

    @property
    def journal(self) -> Journal:
        """Return the journal of file operations."""
        return Journal(Path(self.directory, "journal"), Path(self.root), self.root_inode)

    def save(self) -> None:
        """Write it into its directory, beside the journal."""
        Path(self.directory, "facts.json").write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, directory: Path) -> Recording:
        """Read what `record` left in a directory. Paths in a table may be absolute, so it can not be moved."""
        return msgspec.json.decode((directory / "facts.json").read_bytes(), type=cls)


class Client:
    """Connection that operates on one stream and records the answers."""

    def __init__(self, wire: Wire, stream: Stream, random: Random) -> None:
        self.wire = wire
        self.stream = stream
        self.random = random

    def create(self) -> None:
        """Create the stream, and the durable consumer of ORDERS."""
        answer = self.wire.api(
            f"STREAM.CREATE.{self.stream.name}",
            {"name": self.stream.name, "allow_direct": True, "duplicate_window": HOUR_NS, **self.stream.config},
        )
        assert "error" not in answer, answer
        self.stream.created_ns = time.monotonic_ns()
        if self.stream.name == "ORDERS":
            config = {"durable_name": DURABLE, "ack_policy": "explicit", "max_ack_pending": 100_000}
            answer = self.wire.api(
                f"CONSUMER.DURABLE.CREATE.ORDERS.{DURABLE}", {"stream_name": "ORDERS", "config": config}
            )
            assert "error" not in answer, answer

    def burst(self, count: int = WINDOW) -> None:
        """Publish `count` messages, then await all acks."""
        frames, waiting = self.ask(count)
        self.wire.send(frames)
        self.await_acks(waiting)

    def ask(self, count: int) -> tuple[bytes, dict[str, Message]]:
        """Return publishes of `count` messages, and the messages by the subject of their ack."""
        waiting: dict[str, Message] = {}
        frames = []
        first = max(self.stream.messages, default=0) + 1
        self.wire.new_reply()  # subscribe the inbox
        for seq in range(first, first + count):
            name = self.stream.name
            subject = f"{'$KV.conf' if name == 'KV_conf' else name}.{self.random.randrange(SUBJECTS[name])}"
            size = self.random.choice((0, 20, 200, 200, 2000, 9000 if name == "ORDERS" else 500))
            message = Message(seq, subject, size, time.monotonic_ns())
            reply = f"{self.wire.inbox}.{name}-{seq}"
            waiting[reply] = message
            frames.append(pub(subject, message.payload(), reply, {"N": str(seq)} if seq % 3 == 0 else None))
            self._overwrites(message)
            self.stream.messages[seq] = message
        return b"".join(frames), waiting

    def await_acks(self, waiting: dict[str, Message]) -> None:
        """Await the acks of messages."""
        while waiting:
            frame = self.wire.next(lambda frame: frame.subject in waiting)
            message = waiting.pop(frame.subject)
            answer = frame.json()
            assert answer.get("seq") == message.seq, (self.stream.name, answer)
            message.acked_ns = time.monotonic_ns()
            for earlier in self._overwritten(message):
                earlier.gone_ns = min(earlier.gone_ns, message.acked_ns)

    def _overwritten(self, by: Message) -> list[Message]:
        """Return the messages that a limit removes because of a new message."""
        messages = self.stream.messages
        if "max_msgs_per_subject" in self.stream.config:
            return [each for each in messages.values() if each.subject == by.subject and each.seq < by.seq]
        most = self.stream.config.get("max_msgs")
        return [each for each in messages.values() if isinstance(most, int) and each.seq <= by.seq - most]

    def _overwrites(self, by: Message) -> None:
        for earlier in self._overwritten(by):
            earlier.lost_ns = min(earlier.lost_ns, by.asked_ns)

    def delete(self, count: int) -> None:
        """Delete messages one by one, some securely."""
        for seq in self.random.sample(sorted(self.stream.messages), count):
            message = self.stream.messages[seq]
            if message.lost_ns == NEVER:
                body = {"seq": seq, "no_erase": self.random.random() < 0.5}
                self._remove([message], f"STREAM.MSG.DELETE.{self.stream.name}", body)

    def purge(self) -> None:
        """Purge one subject."""
        subject = self.random.choice(list(self.stream.messages.values())).subject
        held = [message for message in self.stream.messages.values() if message.subject == subject]
        self._remove(held, f"STREAM.PURGE.{self.stream.name}", {"filter": subject})

    def _remove(self, messages: list[Message], api: str, body: dict[str, Any]) -> None:
        asked_ns = time.monotonic_ns()
        for message in messages:
            message.lost_ns = min(message.lost_ns, asked_ns)
        answer = self.wire.api(api, body)
        assert answer.get("success"), answer
        for message in messages:
            message.gone_ns = min(message.gone_ns, time.monotonic_ns())

    def consume(self, count: int) -> None:
        """Take messages from the durable consumer and ack each; the acks are confirmed."""
        sid = self.wire.subscribe(inbox := f"{self.wire.inbox}-pull-{self.random.random()}")
        request = msgspec.json.encode({"batch": count, "no_wait": True})
        self.wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.stream.name}.{DURABLE}", request, inbox)
        for _ in range(count):
            frame = self.wire.delivered(sid)
            if frame.status:
                break
            self.wire.request(frame.reply, b"+ACK")
            acked_seq = int(frame.reply.split(".")[-4])
            self.stream.floors.append((acked_seq, time.monotonic_ns()))
        self.wire.unsubscribe(sid)

    def remove(self) -> None:
        """Delete the stream."""
        self.stream.deleting_ns = time.monotonic_ns()
        answer = self.wire.api(f"STREAM.DELETE.{self.stream.name}")
        assert answer.get("success"), answer
        self.stream.deleted_ns = time.monotonic_ns()

    def observe(self, origin: Stream) -> None:
        """Record the contents of this mirror once it holds everything that its origin has."""
        from tests.chaos.audit import read_all

        asked_ns = time.monotonic_ns()
        while True:
            info = self.wire.api(f"STREAM.INFO.{self.stream.name}")
            if info["state"]["last_seq"] == max(origin.messages) and info["mirror"]["lag"] == 0:
                break
            time.sleep(0.05)
        for held in read_all(self.wire, self.stream.name):
            self.stream.messages[held.seq] = Message(held.seq, held.subject, len(held.data), asked_ns)
        for message in self.stream.messages.values():
            message.acked_ns = time.monotonic_ns()


class Life:
    """Server under the recorder and the clients of its streams.

    `rounds`: number of compactions; each takes some seconds. With 0, Spark is not started.
    """

    def __init__(self, directory: Path, library: Path, seed: int, names: Sequence[str], rounds: int) -> None:
        self.directory = directory
        self.random = Random(seed)
        self.rounds = rounds
        directory.mkdir(parents=True)
        self.journal = Journal.begin(library, directory / "journal", directory / "root")
        self.library = library
        self.environment = self.journal.environment(library)
        chosen = [each for each in STREAMS if each.name in names]
        self.streams = {each.name: each for each in msgspec.json.decode(msgspec.json.encode(chosen), type=list[Stream])}
        self.lake = self.journal.root / "lake"
        self.server = Server(Kind.OURS, self.journal.root, environment=self.environment)
        self.server.args = ["-c", str(directory / "server.conf")]
        (directory / "server.conf").write_text(configured(CONFIG, self.journal.root))
        self.seed = seed

    def live(self, job: LakeJob) -> Recording:
        """Run the workload from the first stream to the last stop."""
        self.server.start()
        try:
            self._live(job)
        except BaseException:
            print(self.server.log())
            raise
        finally:
            self.server.stop()
        journal, streams = self.journal, list(self.streams.values())
        recording = Recording(str(self.directory), self.seed, str(journal.root), journal.root_inode, streams)
        recording.save()
        return recording

    def _live(self, job: LakeJob) -> None:
        with self._wire() as wire:
            for name in self.streams:
                if name != "MIRROR":
                    self._client(wire, name).create()
                    self._client(wire, name).burst()
            for _ in range(2 * len(self.streams)):
                self._act(wire)
        for number in range(self.rounds):
            with self._busy():
                assert job.compact(self.lake) == {}
                if number % 2:
                    assert job.maintain(self.lake) == []
            with self._wire() as wire:
                if number == 0 and "MIRROR" in self.streams:
                    self._client(wire, "MIRROR").create()
                if number == 1 and "GONE" in self.streams:
                    self._client(wire, "GONE").remove()
            self._restart(number)
            if number == 1 and "MIRROR" in self.streams:
                with self._wire() as wire:
                    self._client(wire, "MIRROR").observe(self.streams["ORDERS"])
        if self.rounds:
            assert job.compact(self.lake) == {}
            self._await_release()

    def _restart(self, number: int) -> None:
        if number % 2:
            self.server.stop()
        else:
            with self.journal.held(self.library):
                self.server.kill()
        self.server.start()

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        """Let clients work during the block."""
        over = threading.Event()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                with self._wire() as wire:
                    for _ in range(ACTIONS):
                        if over.wait(PAUSE_S):
                            break
                        self._act(wire)
            except BaseException as error:  # raised again below, in the test's thread
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if failures:
            raise failures[0]

    def _act(self, wire: Wire) -> None:
        alive = [name for name, each in self.streams.items() if each.created_ns < NEVER == each.deleting_ns]
        client = self._client(wire, self.random.choice([name for name in alive if name != "MIRROR"]))
        action = self.random.random()
        if action < 0.3:  # streams that are written to at once share a sync
            clients = [self._client(wire, name) for name in alive if name != "MIRROR"]
            asked = [client.ask(self.random.choice((1, WINDOW))) for client in clients]
            wire.send(b"".join(frames for frames, _ in asked))
            for each, (_, waiting) in zip(clients, asked, strict=True):
                each.await_acks(waiting)
        elif action < 0.7 or client.stream.name == "LIMITED":  # messages deleted there make room for publishes
            client.burst()
        elif action < 0.85:
            client.delete(3)
        elif action < 0.9:
            client.purge()
        elif "ORDERS" in self.streams:
            self._client(wire, "ORDERS").consume(10)

    def _await_release(self) -> None:
        """Wait until logs have released the segments that the tables hold."""
        deadline = time.monotonic() + TIMEOUT_S
        logs = [self.lake.parent / "jetstream" / "$G" / "streams" / name / "log" for name in self.streams]
        while any(len(list(log.glob("*.seg"))) > 3 for log in logs):
            assert time.monotonic() < deadline, [sorted(path.name for path in log.iterdir()) for log in logs]
            time.sleep(0.05)

    def _wire(self) -> Wire:
        return Wire(self.server.address, timeout=TIMEOUT_S)

    def _client(self, wire: Wire, name: str) -> Client:
        return Client(wire, self.streams[name], self.random)


@contextlib.contextmanager
def recorded(
    directory: Path, seed: int, names: Sequence[str], rounds: int, tools: Path
) -> Iterator[tuple[Recording, LakeJob]]:
    """Record a workload into a new directory. The compactor stays for more. `tools`: where the recorder is built."""
    life = Life(directory, build(tools), seed, names, rounds)
    with LakeJob(directory, life.environment) as job:
        yield life.live(job), job


ALL = tuple(each.name for each in STREAMS)
