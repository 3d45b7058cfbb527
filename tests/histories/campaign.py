"""One campaign: a cluster under faults and clients, its state afterwards, and the check of the history.

Belongs here: the composition of cluster, clients and nemesis, the reads at the end, and the result. The options are in
__main__.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from deltalake.exceptions import TableNotFoundError

from lakestream.lake.storage import paths
from lakestream.log.sealing.keys import share
from tests import key_clients
from tests.chaos.audit import read_all
from tests.cluster.nemesis import SYNCED, Nemesis, Step, schedule, together
from tests.cluster.nodes import Cluster, Node, NotReady, until
from tests.cluster.supply import Power
from tests.histories.checks import Violation, check
from tests.histories.clients import (
    CONSUMERS,
    IN_MEMORY,
    OTHER_CONSUMERS,
    OTHERS,
    STREAMS,
    TIMEOUT_S,
    AlonePublisher,
    AlonePuller,
    Batched,
    Chained,
    Client,
    Consumer,
    Elections,
    FleetingPublisher,
    JobPublisher,
    MemoryPublisher,
    MemoryPuller,
    NewsPublisher,
    NewsReader,
    ObjectReader,
    ObjectWriter,
    Ordered,
    OtherPublisher,
    OtherPuller,
    Pipelined,
    Publisher,
    Puller,
    Pushed,
    Reader,
    Worker,
    chunk_subject,
    object_of,
    value_of,
)
from tests.histories.record import (
    ALONE,
    EVENTS,
    FLEETING,
    JOBS,
    KEYS,
    MEMORY,
    MIRROR,
    NEWS,
    OBJECTS,
    OTHER,
    TOTAL,
    Event,
    History,
    Recorder,
    now,
)
from tests.lake import tables
from tests.lake.test_soak import Compactor
from tests.linearizable import NEVER, Operation
from tests.servers import Kind, encrypting
from tests.wire import Wire

REPLICAS = 3
KEY_CLIENTS = 4
KEY_EPOCH_S = 10.0
KEY_REST_S = 0.05
PROGRESS_S = 30.0
SERVED_S = 90.0
"""After the last fault every client must be served again within this time."""
TABLE_S = 180.0
ACCOUNTS = """
  ONE { jetstream: enabled, users: [ { user: one, password: p } ] }
  TWO { jetstream: enabled, users: [ { user: two, password: p } ] }
"""
ONE, TWO = ("one", "ONE"), ("two", "TWO")
MASTERS = ("one", "second", "three")
"""Keys of encrypted stores, also for the programs that read the lake; those of an even length are used with AES."""
CONFIG = """lake {{ {lake} seal_bytes: 64k, seal_age: "1s", poll: "500ms" }}"""


class Plan(msgspec.Struct, frozen=True):
    """Everything that a run depends on, besides the machine."""

    seed: int
    seconds: float
    faults: tuple[str, ...]
    nodes: int
    lake: bool
    bug: str = ""
    """Bug planted in the servers' code (tests/cluster/faulty_node.py)."""
    together: int = 1
    """Maximum number of faults at once."""
    sync: str = ""
    """`sync_interval` of the servers; "" for the default, always."""
    encrypted: bool = False
    """Each server encrypts its store, with a key of its own."""
    power: bool = False
    """The servers' file operations are recorded, so that each of them can lose its power once."""
    iceberg: bool = False
    """The compactor keeps Iceberg tables, too."""

    @property
    def command(self) -> str:
        """Return the command that repeats the run."""
        words = [
            f"python -m tests.histories --seconds {self.seconds:g} --seed {self.seed} --nodes {self.nodes}",
            f"--faults {','.join(self.faults) or 'none'}",
            *(["--no-lake"] if not self.lake else []),
            *([f"--bug {self.bug}"] if self.bug else []),
            *([f"--together {self.together}"] if self.together > 1 else []),
            *([f"--sync {self.sync}"] if self.sync else []),
            f"--encrypted {'yes' if self.encrypted else 'no'}",
            *(["--power"] if self.power else []),
            *(["--iceberg"] if self.iceberg else []),
        ]
        return " ".join(words)


def is_encrypted(seed: int) -> bool:
    """Return True if the run with this seed is one on encrypted stores, unless its command says otherwise: half are."""
    return random.Random(f"{seed} encrypted").random() < 0.5


class Result(msgspec.Struct):
    """Outcome of a run."""

    events: list[Event]
    steps: list[Step]
    """Faults that were injected."""
    violations: list[Violation]
    seconds: float

    def figures(self) -> str:
        """Return a line with the numbers of operations."""
        counts = Counter(event.kind for event in self.events)
        unknown = sum(event.outcome == "unknown" for event in self.events if event.kind in ("publish", "batch", "put"))
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        return f"{kinds}; {unknown} writes without an answer"


class Keys(key_clients.History):
    """History of the keys' clients, which also goes to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def export(self) -> None:
        """Record all operations."""
        for operation in self.operations:
            self._recorder.add(_key_event(operation, "put" if operation.write else "read"))
        for operation in self.declined:
            self._recorder.add(_key_event(operation, "put", outcome="refused", text="no responders"))
        for read in self.direct:
            fields = {"stream": KEYS, "subject": read.key, "value": read.value, "seq": read.seq}
            self._recorder.add(Event("keys", "direct", _ns(read.began), _ns(read.ended), **fields))  # type: ignore[arg-type]


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _key_event(operation: Operation, kind: Any, **fields: Any) -> Event:
    event = Event(
        f"keys{operation.client}",
        kind,
        _ns(operation.began),
        0 if operation.ended == NEVER else _ns(operation.ended),
        operation.outcome.value,  # type: ignore[arg-type]
        stream=KEYS,
        subject=operation.key,
        value=operation.value,
        seq=operation.seq,
        expected=-1 if operation.expected is None else operation.expected,
    )
    return msgspec.structs.replace(event, **fields)


class Campaign:
    """A cluster with its clients.

    Args:
        plan: what to do.
        directory: for stores, lake, history and schedule.
        kind: the program.
    """

    def __init__(self, plan: Plan, directory: Path, kind: Kind = Kind.OURS) -> None:
        self.plan = plan
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.recorder = Recorder(directory / "history.jsonl")
        ours = kind is Kind.OURS
        self.lake = directory / "lake" if plan.lake else None
        if self.lake is not None:
            self.lake.mkdir()
        lake = "enabled: false," if self.lake is None else f'url: "{self.lake}",'
        config = CONFIG.format(lake=lake) if ours else ""
        if plan.sync:
            config += f'\njetstream {{ sync_interval: "{plan.sync}" }}'
        self.cluster = Cluster(
            kind,
            directory,
            plan.nodes,
            links=True,
            faults=ours,
            durable=True,
            config=config,
            accounts=ACCOUNTS,
            user=ONE,
        )
        self.other = self.cluster.as_user(*TWO)
        if plan.encrypted:
            share(MASTERS)
        for node in self.cluster.nodes:
            node.bug = plan.bug
            if plan.encrypted:
                node.config = encrypting(node.config or "", MASTERS[node.number % len(MASTERS)])
        options = ("--iceberg", "v3") if plan.iceberg else ()
        self.compactor = Compactor(self.lake, *options) if self.lake is not None else None
        self.power = Power(self.cluster, directory) if plan.power else None
        self._in_memory = IN_MEMORY if ours and not set(plan.faults) & set(SYNCED) else []
        self._consumers = {
            name: each
            for name, each in CONSUMERS.items()
            if each[0] in (config["name"] for config in (*STREAMS, *self._in_memory))
        }
        self.keys = Keys(self.recorder)
        self.clients: list[Client] = []
        self.key_clients: list[key_clients.Client] = []
        self.steps: list[Step] = []

    def run(self) -> Result:
        """Run the campaign and check its history."""
        began = time.monotonic()
        try:
            self._prepare()
            self._work()
            self._settle()
            self._read_everything()
        finally:
            self._close()
        history = History(self.recorder.events)
        return Result(history.events, self.steps, check(history), time.monotonic() - began)

    def _prepare(self) -> None:
        self.cluster.start()
        for config in (*STREAMS, *self._in_memory):
            fields = {"allow_direct": True, "num_replicas": REPLICAS, **config}
            self.cluster.ask(f"STREAM.CREATE.{config['name']}", fields)
        self.cluster.ask(f"STREAM.CREATE.{KEYS}", key_clients.bucket(-1, REPLICAS))
        for config in OTHERS:
            fields = {"allow_direct": True, "num_replicas": self.plan.nodes if config["name"] == OTHER else REPLICAS}
            self.other.ask(f"STREAM.CREATE.{config['name']}", fields | config)
        for cluster, consumers in ((self.cluster, self._consumers), (self.other, OTHER_CONSUMERS)):
            for name, (stream, fields) in consumers.items():
                config = {"durable_name": name, "ack_policy": "explicit", "max_deliver": -1, **fields}
                cluster.ask(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        self._describe()
        for cluster, name in self._places:
            cluster.wait_current(name)
        if self.compactor is not None:
            self.compactor.start()
        self._make_clients()

    def _describe(self) -> None:
        """Record streams and consumers: a checker need not know this campaign."""
        for config in [*STREAMS, *self._in_memory, *OTHERS, {"name": KEYS}]:
            copy = "mirror" in config or "sources" in config
            retention = "" if copy else config.get("retention", "limits")
            if config["name"] == OBJECTS:
                retention = "objects"
            self.recorder.add(Event("campaign", "stream", now(), now(), stream=config["name"], text=retention))
        durable = self._consumers | OTHER_CONSUMERS
        policies = {name: (stream, "explicit") for name, (stream, _) in durable.items()} | {"ordered": (EVENTS, "none")}
        for name, (stream, policy) in policies.items():
            self.recorder.add(Event("campaign", "consumer", now(), now(), stream=stream, consumer=name, text=policy))

    @property
    def _streams(self) -> list[str]:
        """Streams of the first account, which are the targets of faults."""
        return [EVENTS, JOBS, MIRROR, TOTAL, KEYS, OBJECTS]

    @property
    def _places(self) -> list[tuple[Cluster, str]]:
        """Return all streams, each with the cluster as its account sees it."""
        apart = [ALONE, *(config["name"] for config in self._in_memory)]
        mine = [(self.cluster, name) for name in (*self._streams, *apart)]
        return [*mine, (self.other, OTHER), (self.other, NEWS)]

    def _make_clients(self) -> None:
        number = itertools.count()

        def make(of: type[Client], name: str, cluster: Cluster = self.cluster, **options: Any) -> None:
            connect = self._connect(next(number), cluster)
            self.clients.append(of(name, self.recorder, connect, self.plan.seed, **options))

        publishers = {
            "one": Publisher,
            "two": Publisher,
            "chained": Chained,
            "pipelined": Pipelined,
            "batched": Batched,
        }
        for name, of in publishers.items():
            make(of, name, rest_s=0.1 if of in (Pipelined, Batched) else 0.03)
        make(JobPublisher, "jobs")
        subjects = [f"events.{name}" for name in publishers]
        make(Reader, "reader", subjects=subjects, rest_s=0.05)
        make(Reader, "other", subjects=[f"events.{name}" for name in ("one", "two", "chained")], rest_s=0.02)
        make(Ordered, "ordered", consumer="ordered", rest_s=0)
        make(Puller, "puller", consumer="pulled", rest_s=0.1)
        make(Pushed, "pushed", consumer="pushed", rest_s=0.1)
        for name in ("worker1", "worker2", "worker3"):
            make(Worker, name, consumer="workers", rest_s=0.02)
        make(OtherPublisher, "elsewhere", self.other)
        make(Reader, "abroad", self.other, subjects=["events.elsewhere"], stream=OTHER, rest_s=0.1)
        make(OtherPuller, "others", self.other, consumer="others", rest_s=0.2)
        make(NewsPublisher, "paper", self.other, rest_s=0.06)
        for name in ("news1", "news2"):
            make(NewsReader, name, self.other, consumer=name, rest_s=0.1)
        make(AlonePublisher, "single", rest_s=0.06)
        make(Reader, "hermit", subjects=["alone.single"], stream=ALONE, rest_s=0.1)
        make(AlonePuller, "alone", consumer="alone", rest_s=0.2)
        if self._in_memory:
            make(MemoryPublisher, "volatile", rest_s=0.06)
            make(FleetingPublisher, "brief", rest_s=0.06)
            make(Reader, "remembering", subjects=["memory.volatile"], stream=MEMORY, rest_s=0.1)
            make(Reader, "glimpsing", subjects=["fleeting.brief"], stream=FLEETING, rest_s=0.1)
            make(MemoryPuller, "memory", consumer="memory", rest_s=0.2)
        objects = ("object1", "object2")
        for name in objects:
            make(ObjectWriter, name, rest_s=0.1)
        make(ObjectReader, "objects", objects=objects, rest_s=0.05)
        for name in ("elections1", "elections2"):
            make(Elections, name, rest_s=0.2)
        for number_of in range(KEY_CLIENTS):
            rng = random.Random(f"{self.plan.seed} key {number_of}")
            connect = self._connect(number_of, self.cluster)
            self.key_clients.append(
                key_clients.Client(
                    number_of,
                    self.keys,
                    connect,
                    rng,
                    keep=True,
                    insist=True,
                    rest_s=KEY_REST_S,
                    epoch_s=KEY_EPOCH_S,
                    consistently=True,
                )
            )

    def _connect(self, number: int, cluster: Cluster) -> Any:
        """Return a function that opens connections: the first one to the node of this number, then to random ones."""
        rng = random.Random(f"{self.plan.seed} connections {number}")
        first = [self.cluster.nodes[number % len(self.cluster.nodes)]]

        def connect() -> Wire:
            node = first.pop() if first else rng.choice(self.cluster.nodes)
            return cluster.wire(node, TIMEOUT_S)

        return connect

    def _work(self) -> None:
        for client in self._every:
            client.start()
        self._wait_served()
        deadline = time.monotonic() + self.plan.seconds
        alone = (ALONE,)
        nemesis = Nemesis(self.cluster, self._streams, self.compactor, self.lake, self.power, MASTERS, alone)
        said = time.monotonic()
        for steps in self._schedule():
            calm = steps[0].calm
            if time.monotonic() + calm + max(step.seconds for step in steps) > deadline:
                break
            time.sleep(calm)
            self._inject(nemesis, steps)
            self.steps += steps
            if time.monotonic() > said + PROGRESS_S:
                said = time.monotonic()
                left = deadline - said
                print(f"{left:5.0f} s left, {len(self.steps)} faults, {len(self.recorder.events)} events", flush=True)
        time.sleep(max(0.0, deadline - time.monotonic()))
        self._wait_served()

    def _schedule(self) -> Iterator[list[Step]]:
        plan = self.plan
        if not plan.faults:
            return
        if plan.together > 1:
            yield from together(plan.seed, plan.faults, plan.nodes, plan.together)
        for step in schedule(plan.seed, plan.faults, plan.nodes):
            yield [step]

    def _inject(self, nemesis: Nemesis, steps: list[Step]) -> None:
        text = " + ".join(map(str, steps))
        print(f"  {text}", flush=True)
        began = now()
        try:
            if len(steps) == 1:
                nemesis.apply(steps[0])
            else:
                nemesis.apply_all(steps)
        finally:
            self.recorder.add(Event("nemesis", "fault", began, now(), text=text))
            (self.directory / "schedule.json").write_bytes(msgspec.json.encode([*self.steps, *steps]))

    @property
    def _every(self) -> list[Client | key_clients.Client]:
        return [*self.clients, *self.key_clients]

    def _wait_served(self) -> None:
        """Wait until every client got answers after this moment."""
        steps = [(client, client.steps + 3) for client in self.clients]
        answers = [(client, client.answered + 3) for client in self.key_clients]

        def waiting() -> list[str]:
            for client in self._every:
                if client.failure is not None:
                    raise client.failure
            late = [client.name for client, goal in steps if client.steps < goal]
            return late + [client.name for client, goal in answers if client.answered < goal]

        with contextlib.suppress(NotReady):
            until(lambda: not waiting(), "an answer to every client", SERVED_S)
        assert not waiting(), f"not served: {waiting()}"

    def _settle(self) -> None:
        """Stop the writers, let consumers, copies and table catch up, then stop everything."""
        readers = [client for client in self.clients if isinstance(client, Consumer | Elections)]
        for client in self._every:
            if client not in readers:
                client.stop()
        self._join([client for client in self._every if client not in readers])
        for client in self.clients:
            if isinstance(client, Worker | NewsReader):
                client.dropped = 0
        for cluster, name in self._places:
            cluster.wait_current(name, SERVED_S)
        last = self._state(EVENTS)["last_seq"]
        eager = [client for client in self.clients if isinstance(client, Puller | Pushed | Ordered)]
        ends = {stream: self._state(stream)["last_seq"] for stream in {client.stream for client in eager}}
        with contextlib.suppress(AssertionError):  # the history says what is missing
            until(lambda: all(len(client.seen) >= ends[client.stream] for client in eager), "all deliveries", SERVED_S)
        with contextlib.suppress(AssertionError):
            until(lambda: not self._state(JOBS)["messages"], "an empty queue", SERVED_S)
        with contextlib.suppress(AssertionError):
            until(lambda: not self._state(NEWS)["messages"], "acks of all news", SERVED_S)
        with contextlib.suppress(AssertionError):
            until(lambda: self._state(MIRROR)["last_seq"] == self._state(TOTAL)["last_seq"] == last, "copies", SERVED_S)
        for client in readers:
            client.stop()
        self._join(readers)

    def _join(self, clients: Sequence[Client | key_clients.Client]) -> None:
        for client in clients:
            client.join(30)
            assert not client.is_alive(), f"{client.name} hangs"
            if client.failure is not None:
                raise client.failure

    def _state(self, stream: str) -> Any:
        cluster = next(cluster for cluster, name in self._places if name == stream)
        return cluster.ask(f"STREAM.INFO.{stream}")["state"]

    def _read_everything(self) -> None:
        self.keys.export()
        for cluster, stream in self._places:
            last = self._state(stream)["last_seq"]
            group = cluster.stream_cluster(stream)
            for name in [group["leader"], *(replica["name"] for replica in group.get("replicas") or ())]:
                for message in self._replica(cluster, cluster.node(name), stream, last):
                    self.recorder.add(message)
        if self.lake is not None:
            for event in self._table(self._state(EVENTS)["last_seq"]):
                self.recorder.add(event)

    def _replica(self, cluster: Cluster, node: Node, stream: str, last: int) -> list[Event]:
        """Return the messages of a node's replica, once it has all; as they are if that takes too long."""
        found: list[Event] = []

        def whole() -> bool:
            nonlocal found
            with cluster.wire(node, 20) as wire:
                found = list(self._stored(wire, node, stream))
            return stream in (JOBS, NEWS, OBJECTS) or max((event.seq for event in found), default=0) >= last

        with contextlib.suppress(AssertionError):
            until(whole, f"{stream} at {node.name}", SERVED_S)
        return found

    def _stored(self, wire: Wire, node: Node, stream: str) -> Iterator[Event]:
        if stream == KEYS:
            for seq, (key, value) in key_clients.stored(wire).items():
                yield Event(node.name, "stored", now(), now(), stream=stream, subject=key, value=value, seq=seq)
            return
        if stream == OBJECTS:
            yield from self._objects(wire, node)
            return
        for message in read_all(wire, stream):
            value = value_of(message.data)
            fields = {"stream": stream, "subject": message.subject, "value": value, "seq": message.seq}
            yield Event(node.name, "stored", now(), now(), **fields)  # type: ignore[arg-type]

    def _objects(self, wire: Wire, node: Node) -> Iterator[Event]:
        """Read the objects of a node's replica, which has everything by now."""
        began, chunks, entries = now(), defaultdict[str, list[bytes]](list), dict[str, tuple[int, Any]]()
        for message in read_all(wire, OBJECTS):
            if ".C." in message.subject:
                chunks[message.subject].append(message.data)
            else:
                entry = json.loads(message.data)
                entries[entry["name"]] = message.seq, entry
        for name, (seq, entry) in entries.items():
            value = object_of(entry, chunks[chunk_subject(entry["nuid"])])
            yield Event(node.name, "read", began, now(), stream=OBJECTS, subject=name, value=value, seq=seq)

    def _table(self, last: int) -> list[Event]:
        """Return the rows of the stream's table, once it has the last message; as they are if that takes too long."""
        path = paths.table(str(self.lake), EVENTS, ONE[1])
        rows: list[dict[str, Any]] = []

        def whole() -> bool:
            nonlocal rows
            with contextlib.suppress(TableNotFoundError, OSError):
                rows = tables.rows(path)
            return bool(rows) and rows[-1]["seq"] >= last

        with contextlib.suppress(AssertionError):
            until(whole, "a table with everything", TABLE_S)
        return [
            Event(
                "table",
                "row",
                now(),
                now(),
                stream=EVENTS,
                subject=row["subject"],
                value=value_of(row["data"]),
                seq=row["seq"],
            )
            for row in rows
        ] or [Event("table", "row", now(), now(), stream=EVENTS, text="no table")]

    def _close(self) -> None:
        for client in self._every:
            client.stop()
        if self.compactor is not None:
            with contextlib.suppress(AssertionError):
                self.compactor.kill()
        (self.directory / "servers.log").write_text(
            "\n".join(f"===== {node.name}\n{node.log(2000)}" for node in self.cluster.nodes)
        )
        self.cluster.kill()
        self.recorder.close()
