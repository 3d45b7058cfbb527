"""Workload of a recorded cluster: three nodes, a fourth one for a while, and one lake, all in one journal.

Belongs here: the streams, what clients and operators do, and the steps that a recording must have. One journal gives
all nodes one order of operations, so that a crash at one operation is a crash of all of them at the same moment.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from lakestream.log.format.errors import LogError
from lakestream.log.store.journal import KEY as STREAM_KEY
from lakestream.log.store.root import GONE, INCOMING
from lakestream.raft.group.hard_state import NAME as HARD_STATE
from lakestream.raft.group.hard_state import SLOT, PersistentState, decode_slot
from tests.cluster.nodes import Cluster, Node, until
from tests.power.facts import NEVER, Consumer, Message, Stream, Version
from tests.power.journal import Journal, Operation, build
from tests.power.journal import Kind as Op
from tests.power.lake_job import LakeJob
from tests.power.workload import DURABLE, HOUR_NS, SUBJECTS, Client, Member, Recording
from tests.sealing import files_of
from tests.servers import Kind, configured
from tests.wire import Closed, Wire, WireTimeout, pub

WINDOW = 12
ANSWER_S = 2.0
PAUSE_S = 0.05
SPARK_PAUSE_S = 1.0  # a compaction takes long, and should not get more to do than it does
STEP_S = 60.0
LAKE = "lake"
MOST = 60
"""Limit of messages of LIMITED."""
SILENCE = (OSError, Closed, WireTimeout, KeyError, ValueError)

STREAMS: list[Stream] = [
    Stream("ORDERS", {"subjects": ["ORDERS.*"], "num_replicas": 3}, "ORDERS.1", copies=2),
    Stream("KV_conf", {"subjects": ["$KV.conf.>"], "max_msgs_per_subject": 1, "allow_rollup_hdrs": True,
                       "num_replicas": 3}, "$KV.conf.probe", copies=2),
    Stream("LIMITED", {"subjects": ["LIMITED.*"], "max_msgs": MOST, "num_replicas": 3}, "LIMITED.1", copies=2),
    Stream("LOCAL", {"subjects": ["LOCAL.*"], "num_replicas": 1}, "LOCAL.1"),
    Stream("SCALED", {"subjects": ["SCALED.*"], "num_replicas": 1}, "SCALED.1"),
    Stream("GONE", {"subjects": ["GONE.*"], "num_replicas": 3}, copies=2),
    Stream("GONE1", {"subjects": ["GONE1.*"], "num_replicas": 1}),
    Stream("MIRROR", {"mirror": {"name": "ORDERS"}, "num_replicas": 3, "metadata": {"lakestream.clone": "always"}}),
]  # fmt: skip
WORKED = (("ORDERS", "LOCAL"), ("KV_conf", "LIMITED", "SCALED"))
"""Streams of each client that works all the time."""


def config(root: Path) -> str:
    """Return what every node's configuration says besides its cluster."""
    return f'lake {{ url: "{root / LAKE}", seal_bytes: 64k, seal_age: "1s", retain_bytes: 0, poll: "100ms" }}'


HOLD = """
import os, sys
log, version, uid, index = sys.argv[1:]
os.makedirs(log, exist_ok=True)
for path in (log, os.path.dirname(log), os.path.dirname(os.path.dirname(log)), log.partition("/streams/")[0]):
    os.fsync(os.open(path, os.O_RDONLY))
name = os.path.join(log, version.zfill(20) + ".json")
with open(name + ".new", "x") as file:
    file.write('{"commitInfo":{"operation":"WRITE"}}\\n')
    file.write('{"txn":{"appId":"lakestream:%s","version":%s}}\\n{"metaData":{"id":"t"}}' % (uid, index))
    file.flush()
    os.fsync(file.fileno())
os.rename(name + ".new", name)
os.fsync(os.open(log, os.O_RDONLY))
"""
"""Commit to a table what a compactor commits whose segments held only messages that are removed already."""


class Busy(Client):
    """Client that goes on when nodes are gone: what is not answered is in doubt."""

    def burst(self, count: int = WINDOW) -> None:
        """Publish `count` messages, then await their acks for a while."""
        waiting: dict[str, Message] = {}
        frames = []
        stream = self.stream
        self.wire.new_reply()  # subscribe the inbox
        for _ in range(count):
            number = stream.asked = stream.asked + 1
            name = stream.name
            subject = f"{'$KV.conf' if name == 'KV_conf' else name}.{self.random.randrange(SUBJECTS.get(name, 3))}"
            size = self.random.choice((0, 20, 200, 200, 2000, 9000 if name in ("ORDERS", "LIMITED") else 500))
            message = Message(0, subject, size, time.monotonic_ns(), number=number)
            stream.doubtful.append(message)
            for earlier in self._exceeding(message):
                earlier.lost_ns = min(earlier.lost_ns, message.asked_ns)
            reply = f"{self.wire.inbox}.s{number}"
            waiting[reply] = message
            frames.append(pub(subject, message.payload(), reply))
        self.wire.send(b"".join(frames))
        deadline = time.monotonic() + ANSWER_S
        while waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WireTimeout("acks")
            frame = self.wire.next(lambda frame: frame.subject in waiting, left)
            message = waiting.pop(frame.subject)
            if frame.status == 503:  # it is not stored, and may be sent again
                stream.doubtful.remove(message)
            elif "seq" in (answer := frame.json()):
                message.seq, message.acked_ns = answer["seq"], time.monotonic_ns()
                stream.doubtful.remove(message)
                assert message.seq not in stream.messages, (stream.name, answer)
                for earlier in self._displaced(message):
                    earlier.gone_ns = min(earlier.gone_ns, message.acked_ns)
                stream.messages[message.seq] = message

    def _exceeding(self, by: Message) -> list[Message]:
        """Return the messages that limits remove if this one is stored with the highest possible sequence."""
        messages = self.stream.messages
        if "max_msgs_per_subject" in self.stream.config:
            held = [*messages.values(), *self.stream.doubtful]
            return [each for each in held if each.subject == by.subject and each is not by]
        if "max_msgs" in self.stream.config:
            highest = max(messages, default=0) + len(self.stream.doubtful)
            return [each for each in messages.values() if each.seq <= highest - MOST] + self.stream.doubtful[:-MOST]
        return []

    def _displaced(self, by: Message) -> list[Message]:
        """Return the messages that are gone now that this one has its sequence."""
        messages = self.stream.messages.values()
        if "max_msgs_per_subject" in self.stream.config:
            return [each for each in messages if each.subject == by.subject and each.seq < by.seq]
        if "max_msgs" in self.stream.config:
            return [each for each in messages if each.seq <= by.seq - MOST]
        return []

    def delete(self, count: int) -> None:
        """Delete messages one by one, if there are enough."""
        if len(self.stream.messages) > count:
            super().delete(count)

    def purge(self) -> None:
        """Purge one subject, if there is one."""
        if self.stream.messages:
            subject = self.random.choice(list(self.stream.messages.values())).subject
            held = [each for each in self.stream.messages.values() if each.subject == subject]
            held += [each for each in self.stream.doubtful if each.subject == subject]
            self._remove(held, f"STREAM.PURGE.{self.stream.name}", {"filter": subject})

    def _remove(self, messages: list[Message], api: str, body: dict[str, Any]) -> None:
        asked_ns = time.monotonic_ns()
        for message in messages:
            message.lost_ns = min(message.lost_ns, asked_ns)
        answer = self.wire.api(api, body, ANSWER_S)
        if answer.get("success"):
            for message in messages:
                if message.seq:
                    message.gone_ns = min(message.gone_ns, time.monotonic_ns())

    def consume(self, count: int) -> None:
        """Take messages from the durable consumer, ack each, and note the ack floor that follows from the acks."""
        sid = self.wire.subscribe(inbox := f"{self.wire.inbox}-pull-{self.random.random()}")
        request = msgspec.json.encode({"batch": count, "no_wait": True})
        self.wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.stream.name}.{DURABLE}", request, inbox)
        for _ in range(count):
            frame = self.wire.next(lambda frame: frame.sid == sid, ANSWER_S)
            if frame.status:
                break
            answer = self.wire.request(frame.reply, b"+ACK", timeout=ANSWER_S)
            if not answer.status:
                self.stream.acks.add(int(frame.reply.split(".")[-4]))
                self._note_floor()
        self.wire.unsubscribe(sid)

    def _note_floor(self) -> None:
        floor = reached = self.stream.floors[-1][0] if self.stream.floors else 0
        messages, acks = self.stream.messages, self.stream.acks
        while (floor := floor + 1) in acks or (floor in messages and messages[floor].lost_ns < NEVER):
            reached = floor if floor in acks else reached
        if reached:
            self.stream.floors.append((reached, time.monotonic_ns()))


class ClusterLife:
    """Cluster under the recorder, its clients and operators.

    `lake`: with compaction, clones and what follows from them; without it Spark is not started.
    """

    def __init__(self, directory: Path, library: Path, seed: int, lake: bool) -> None:
        self.directory = directory
        self.random = Random(seed)
        self.seed = seed
        self.with_lake = lake
        directory.mkdir(parents=True)
        self.journal = Journal.begin(library, directory / "journal", directory / "root")
        self.library = library
        self.environment = self.journal.environment(library)
        self.streams = {
            each.name: each for each in msgspec.json.decode(msgspec.json.encode(STREAMS), type=list[Stream])
        }
        self.members = [Member(f"n{number}") for number in (1, 2, 3, 4)]
        root = self.journal.root
        self._make_disks([root / each.name for each in self.members] + [root / LAKE])
        self.cluster = Cluster(Kind.OURS, root, 3, config=config(root))
        for node in self.cluster.nodes:
            self._record(node)
        self.lake = root / LAKE
        self._over = threading.Event()
        self._pause_s = PAUSE_S
        self._held = 0  # commits of `_compact_removed`

    def _make_disks(self, paths: Sequence[Path]) -> None:
        """Create directories durably, under the recorder."""
        program = "import os, sys\n[os.mkdir(each) for each in sys.argv[1:]]\nos.fsync(os.open('.', os.O_RDONLY))"
        command = [sys.executable, "-c", program, *map(str, paths)]
        subprocess.run(command, cwd=self.journal.root, env={**os.environ, **self.environment}, check=True)

    def _record(self, node: Node) -> None:
        """Let a node run under the recorder, with its configuration outside of the root."""
        path = self.directory / f"{node.name}.conf"
        path.write_text(configured(node.config or "", node.store))
        self.members[node.number].port = node.route_port
        node.config = None
        node.args += ["-c", str(path)]
        node.environment.update(self.environment)

    def live(self, job: LakeJob) -> Recording:
        """Run the workload from the first start to the last stop."""
        try:
            self._live(job)
        except BaseException:
            print(self.cluster.log())
            raise
        finally:
            self._over.set()
            with self.journal.held(self.library):
                self.cluster.kill()
        journal = self.journal
        recording = Recording(
            str(self.directory),
            self.seed,
            str(journal.root),
            journal.root_inode,
            list(self.streams.values()),
            self.members,
        )
        recording.save()
        return recording

    def _live(self, job: LakeJob) -> None:
        for member in self.members[:3]:
            member.started_ns = time.monotonic_ns()
        self.cluster.start()
        for name in self.streams:
            if name != "MIRROR":
                self._create(name)
        self._consumer(DURABLE, kept=True)
        with self._working():
            self._work_a_while()
            self._vote()
            self._change_meta()
            self._restart_a_follower()
            self._scale()
            if self.with_lake:
                self._compact(job)
            self._miss_entries(job)
            self._join_and_leave()
            if self.with_lake:
                self._clone(job)
            self._stop_one()
            self._work_a_while()
        for name in ("ORDERS", "KV_conf", "LIMITED", "SCALED"):
            self.cluster.wait_current(name)

    # ---- steps

    def _vote(self) -> None:
        """Give leaderships away: of a stream, and of the meta group."""
        self.cluster.api("STREAM.LEADER.STEPDOWN.ORDERS")
        self.cluster.stream_leader("ORDERS")
        self.cluster.system_api("META.LEADER.STEPDOWN")
        self.cluster.meta_leader()

    def _change_meta(self) -> None:
        """Change configurations, create and delete consumers and streams."""
        for number in (1, 2, 3):
            self._update("KV_conf", number)
        self._consumer("E1", kept=True)
        self._consumer("E2", kept=False)
        for name in ("GONE", "GONE1"):
            stream = self.streams[name]
            self._with_wire(lambda wire, stream=stream: Busy(wire, stream, self.random).burst())
            stream.deleting_ns = time.monotonic_ns()
            self._ask(f"STREAM.DELETE.{name}", done_already=10059)
            stream.deleted_ns = time.monotonic_ns()

    def _restart_a_follower(self) -> None:
        node = self.random.choice(self._followers("KV_conf"))
        self._kill(node)
        self._work_a_while()
        node.start()
        self.cluster.wait_ready()

    def _scale(self) -> None:
        """Give a stream three replicas, and take two away again."""
        for replicas in (3, 1):
            self._ask("STREAM.UPDATE.SCALED", self._config("SCALED", num_replicas=replicas))
            until(lambda count=replicas: len(self.cluster.followers("SCALED")) == count - 1, "replicas", STEP_S)
            self.cluster.wait_current("SCALED", STEP_S)
            self._work_a_while(0.5)

    def _compact(self, job: LakeJob) -> None:
        self._pause_s = SPARK_PAUSE_S
        assert job.compact(self.lake) == {}
        self._pause_s = PAUSE_S
        self._await_drops(self.cluster.nodes)

    def _miss_entries(self, job: LakeJob) -> None:
        """Stop a node until the others have dropped what it misses: it gets a state instead of entries."""
        node = self.random.choice(self._followers("LIMITED"))
        node.stop()
        self._work_a_while()
        if self.with_lake:
            self._compact(job)
        else:
            self._compact_removed("LIMITED")
        missed = self._segments(node, "LIMITED")[-1]
        for other in self.cluster.others(node):
            until(lambda other=other: self._segments(other, "LIMITED")[0] > missed, "a log without them", STEP_S)
        node.start()
        self.cluster.wait_ready(STEP_S)
        for name in ("ORDERS", "LIMITED"):
            self.cluster.wait_current(name, STEP_S)

    def _join_and_leave(self) -> None:
        """Let a fourth node join; move a stream there from another one; remove the node from the cluster."""
        late, member = self.cluster.add_node(), self.members[3]
        self._record(late)
        member.started_ns = time.monotonic_ns()
        late.start()
        self.cluster.wait_ready(STEP_S)
        leaver = self.random.choice(self._followers("ORDERS"))
        self._ask("STREAM.PEER.REMOVE.ORDERS", {"peer": leaver.name})
        until(lambda: late in [*self.cluster.followers("ORDERS"), self.cluster.stream_leader("ORDERS")], "move", STEP_S)
        self.cluster.wait_current("ORDERS", STEP_S)
        self._work_a_while(0.5)
        answer = self.cluster.system_api("SERVER.REMOVE", {"peer": late.name}, node=self.cluster.nodes[0], timeout=10.0)
        assert answer.get("success"), answer
        until(lambda: late not in self.cluster.followers("ORDERS"), "a stream without the removed node", STEP_S)
        for name in ("ORDERS", "LIMITED", "KV_conf"):
            self.cluster.wait_current(name, STEP_S)
        self._kill(late)
        self.cluster.nodes.remove(late)
        member.removed_ns = time.monotonic_ns()
        self.cluster.wait_ready(STEP_S)

    def _clone(self, job: LakeJob) -> None:
        """Create a mirror that begins as a clone, and await everything that its origin has.

        A mirror waits 5 s for a compactor, and the one here is at work only within a compaction.
        """
        self._create("MIRROR")
        until(lambda: any(self.lake.glob("segments/MIRROR/*/clone.json")), "a request for a clone", STEP_S)
        self._compact(job)
        until(lambda: self._info("MIRROR")["state"]["messages"] > 0, "a clone", STEP_S)

    def _stop_one(self) -> None:
        node = self.random.choice(self.cluster.nodes)
        node.stop()
        self._work_a_while(0.5)
        node.start()
        self.cluster.wait_ready(STEP_S)

    # ---- what steps are made of

    def _kill(self, node: Node) -> None:
        with self.journal.held(self.library):
            node.kill()

    def _work_a_while(self, seconds: float = 1.0) -> None:
        time.sleep(seconds)

    def _await_drops(self, nodes: Sequence[Node]) -> None:
        """Wait until logs have let go of segments that the table holds."""
        logs = [node.stream_directory("ORDERS") / "log" for node in nodes]
        until(lambda: all(any(log.glob("*.outline")) for log in logs if log.is_dir()), "segments that left", STEP_S)

    def _compact_removed(self, name: str) -> None:
        """Let the logs of a stream drop its removed messages without Spark."""
        flushed: Any = None
        with self.cluster.wire(timeout=STEP_S) as wire:
            flushed = wire.request(f"$LAKE.API.FLUSH.{name}", b"").json()
        until(lambda: self._info(name)["state"]["first_seq"] > flushed["last_seq"], "removal by limits", STEP_S)
        (identity,) = self.lake.glob(f"segments/{name}/*/stream.json")
        log = self.lake / "streams" / name / "_delta_log"
        words = [
            str(log),
            str(self._held),
            msgspec.json.decode(identity.read_bytes())["uid"],
            str(flushed["last_index"]),
        ]
        self._held += 1
        subprocess.run([sys.executable, "-c", HOLD, *words], env={**os.environ, **self.environment}, check=True)

    def _followers(self, stream: str) -> list[Node]:
        found: list[Node] = until(lambda: self.cluster.followers(stream), f"followers of {stream}", STEP_S)
        return found

    @staticmethod
    def _segments(node: Node, stream: str) -> list[str]:
        return sorted(path.name for path in (node.stream_directory(stream) / "log").glob("*.seg"))

    def _config(self, name: str, **changes: object) -> dict[str, Any]:
        return {"name": name, "allow_direct": True, "duplicate_window": HOUR_NS, **self.streams[name].config, **changes}

    def _info(self, name: str) -> Any:
        return self.cluster.api(f"STREAM.INFO.{name}")

    def _ask(self, api: str, body: Any = None, done_already: int = 0) -> Any:
        """Repeat a request until it succeeds, or says that it has nothing left to do."""

        def answer() -> Any:
            told = self.cluster.api(api, body)
            if "error" in told and told["error"].get("err_code") != done_already:
                raise ValueError(told)
            return told

        return until(answer, api, STEP_S)

    def _create(self, name: str) -> None:
        self._ask(f"STREAM.CREATE.{name}", self._config(name))
        self.streams[name].created_ns = time.monotonic_ns()

    def _update(self, name: str, number: int) -> None:
        self.streams[name].versions.append(version := Version(number, time.monotonic_ns()))
        self._ask(f"STREAM.UPDATE.{name}", self._config(name, description=str(number)))
        version.acked_ns = time.monotonic_ns()

    def _consumer(self, name: str, kept: bool) -> None:
        consumer = Consumer(name)
        options = {"durable_name": name, "ack_policy": "explicit", "max_ack_pending": 100_000, "ack_wait": 2 * 10**9}
        self._ask(f"CONSUMER.CREATE.ORDERS.{name}", {"stream_name": "ORDERS", "config": options})
        consumer.created_ns = time.monotonic_ns()
        if not kept:
            consumer.deleting_ns = time.monotonic_ns()
            self._ask(f"CONSUMER.DELETE.ORDERS.{name}", done_already=10014)
            consumer.deleted_ns = time.monotonic_ns()
        self.streams["ORDERS"].consumers.append(consumer)

    def _with_wire(self, work: Callable[[Wire], None]) -> None:
        wire = self.cluster.wire()
        try:
            work(wire)
        finally:
            wire.close()

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Let clients work during the block."""
        failures: list[BaseException] = []
        threads = [
            threading.Thread(target=self._work, args=(names, Random(self.random.random()), failures))
            for names in WORKED
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]

    def _work(self, names: Sequence[str], random: Random, failures: list[BaseException]) -> None:
        wire: Wire | None = None
        while not self._over.wait(self._pause_s):
            try:
                if wire is None:
                    running = [node for node in self.cluster.nodes if node.running and node.port]
                    wire = self.cluster.wire(random.choice(running))
                self._act(Busy(wire, self.streams[random.choice(names)], random))
                if random.random() < 0.05:
                    wire.close()
                    wire = None
            except SILENCE:  # the answer is in doubt; what may still come is not read
                if wire is not None:
                    wire.close()
                wire = None
            except BaseException as error:  # raised again in the thread of the test
                failures.append(error)
                return
        if wire is not None:
            wire.close()

    def _act(self, client: Busy) -> None:
        action = client.random.random()
        if client.stream.name == "ORDERS" and action < 0.3:
            client.consume(10)
        elif action < 0.8 or client.stream.name == "LIMITED":  # messages deleted there make room for publishes
            client.burst()
        elif action < 0.95:
            client.delete(2)
        else:
            client.purge()


@contextlib.contextmanager
def recorded_cluster(directory: Path, seed: int, lake: bool, tools: Path) -> Iterator[tuple[Recording, LakeJob]]:
    """Record a workload into a new directory. `tools`: where the recorder is built."""
    life = ClusterLife(directory, build(tools), seed, lake)
    with LakeJob(directory, life.environment) as job:
        yield life.live(job), job


# ---- steps in a recording


STEPS = (
    "write",
    "roll",
    "checkpoint",
    "stage",
    "drop",
    "meta change",
    "vote",
    "join",
    "snapshot install",
    "deletion",
)
"""Steps that a recording of a cluster has; with Spark also a clone."""


def steps(operations: Sequence[Operation]) -> Counter[str]:
    """Count the steps that a recording has."""
    found: Counter[str] = Counter()
    paths: dict[int, str] = {}
    for operation in operations:
        path, target = operation.path, operation.target
        if operation.kind is Op.CREATE:
            paths[operation.inode] = path
        for name, shown in (
            ("write", operation.kind is Op.WRITE and "/streams/" in paths.get(operation.inode, "")),
            ("meta change", operation.kind is Op.WRITE and "/_meta_/log/" in paths.get(operation.inode, "")),
            ("roll", operation.kind is Op.CREATE and "/streams/" in path and "/log/" in path),
            ("checkpoint", target.endswith("/checkpoint")),
            ("stage", operation.kind is Op.LINK and f"/{LAKE}/segments/" in path),
            ("drop", operation.kind is Op.UNLINK and "/log/" in path and path.endswith(".seg")),
            ("join", operation.kind is Op.MKDIR and path.endswith("/n4/jetstream/_meta_")),
            ("snapshot install", operation.kind is Op.RENAME and path.endswith(INCOMING)),
            ("clone", operation.kind is Op.RENAME and path.endswith("/MIRROR/base.making")),
            ("deletion", operation.kind is Op.RENAME and GONE in target),
        ):
            found[name] += shown
    found["vote"] = len({(each.member, each.term, each.vote) for each in promises(operations) if each.vote})
    return found


class Promised(NamedTuple):
    """Term and vote that a member of a group has written. `member`: its file, each new one under another name."""

    member: str
    term: int
    vote: str


def promises(operations: Sequence[Operation]) -> Iterator[Promised]:
    """Yield each term and vote that a recording writes, in order.

    The files are made again in another place, with the keys beside them: those of an encrypted store can be read only
    as a whole.
    """
    with tempfile.TemporaryDirectory() as place:
        members: dict[int, str] = {}
        copies: dict[int, Path] = {}
        for operation in operations:
            there, inode = Path(place, operation.path.lstrip("/")), operation.inode
            if operation.kind is Op.CREATE:
                members.pop(inode, None)
                copies.pop(inode, None)
                if there.name.startswith((HARD_STATE, STREAM_KEY)):
                    there.parent.mkdir(parents=True, exist_ok=True)
                    there.write_bytes(b"")
                    copies[inode] = there
                if there.name.startswith(HARD_STATE):
                    members[inode] = f"{operation.path} of {operation.at}"
            elif operation.kind is Op.WRITE and inode in copies:
                with copies[inode].open("r+b") as file:
                    os.pwrite(file.fileno(), operation.data, operation.number)
                if inode in members and (state := _newest(copies[inode])) is not None:
                    yield Promised(members[inode], state.hard.term, state.hard.vote)
            elif operation.kind is Op.RENAME and there.exists():
                target = Path(place, operation.target.lstrip("/"))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(target, ignore_errors=True)
                there.rename(target)
                for moved, path in copies.items():
                    if path.is_relative_to(there):
                        copies[moved] = target / path.relative_to(there)


def _newest(path: Path) -> PersistentState | None:
    """Return the newest state in a file of two slots; None if there is none yet."""
    files = files_of(Path(str(path).partition("/jetstream/")[0]))
    found: list[tuple[int, PersistentState]] = []
    with contextlib.suppress(LogError), files.opened(str(path)) as fd:
        for slot in (0, 1):
            number, state = decode_slot(files.read_at(fd, SLOT, slot * SLOT))
            found += [] if state is None else [(number, state)]
    return max(found, key=lambda each: each[0])[1] if found else None


def broken_promises(promised: Iterable[Promised]) -> list[str]:
    """Return members whose term went back, or that voted for two candidates in one term."""
    last: dict[str, Promised] = {}
    problems = []
    for each in promised:
        before = last.get(each.member, each)
        if each.term < before.term:
            problems.append(f"{each.member}: term {before.term} became {each.term}")
        if each.term == before.term and before.vote and each.vote != before.vote:
            problems.append(f"{each.member}: voted for {before.vote} and for {each.vote} in term {each.term}")
        last[each.member] = each
    return problems
