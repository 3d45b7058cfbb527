"""The parts of a case: a server with a lake, its compactor, streams with publishers, and checks.

Belongs here: what all groups of cases share. A group is a module with `CASES`, a sequence of `Case`. Its functions get
a `Site`, let something happen to the lake, and raise `Broken` if a promise does not hold:

    def optimize(site: Site) -> None:
        traffic = site.traffic()              # a new stream, to which a thread publishes from now on
        site.in_table(traffic, 200)           # the table has 200 messages that have left the log
        ...                                   # the fault: site.table(traffic) is the path of the table
        site.goes_on(traffic)                 # publishes are still acked in time
        site.follows(traffic)                 # the table is the stream again, and reads of history work

Cases of one kind of lake share a site, unless they say `own`: each has streams of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import ConsumerConfig, DeliverPolicy

from lakestream.lake.storage import paths
from lakestream_commands.monitor import Monitor, snapshot
from lakestream_commands.status import summary
from tests.faults.plan import SOURCE, Plan
from tests.lake.test_compact_job import Job
from tests.power.journal import build
from tests.s3_proxy import Proxy
from tests.s3_server import S3Server
from tests.servers import Kind, Server
from tests.wire import Closed, Frame, Wire, WireTimeout

ACK_S = 10.0
"""Longest time for a pub ack, s: below any timeout of a lake's client, above what a busy machine needs."""
ANSWER_S = 15.0
"""Longest time for an answer to a read of history while the lake is away, s."""
SETTLE_S = 300.0
"""Longest time in which everything resumes, s, on a busy machine."""
PAUSE_S = 0.02
"""Pause between two messages of a publisher, s."""
LEASE_S = "8"
OUTAGE_S = 12.0
"""Duration of an outage, s: longer than a look at the lake."""
HISTORY = 150
"""Messages that have left the log when an outage begins."""
QUIET_S = 4.0
"""Time without a message after which a consumer has what it can get, s: longer than the pause between two tries."""
PAYLOAD = 700
CONFIG = """
lake {{ url: {url}, seal_bytes: 16384, seal_age: "300ms", retain_bytes: 0, poll: "200ms", staged_grace: "{grace}" }}
"""
TOOLS = Path(tempfile.gettempdir(), "lakestream-faults")
MARKS = ("Traceback", "internal error")
"""Words of the server's log that no outage may cause."""


class Broken(Exception):
    """Raised when a promise does not hold."""


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        name: for the command line.
        group: the module.
        fault, promise: for the table of results.
        run: lets it happen and checks; returns the number of faults if it has many. Raises `Broken`.
        lake: "directory", or "s3" (a server in memory behind a `Proxy`).
        own: the case gets a new site, since it leaves the lake or the server in another state.
        compactor: "spark", "small" (small_compactor.py) or "" (none).
        plan: makes the plan by which files of server and compactor fail (tests/faults), from the site's directory.
        grace: `staged_grace` of the server.
    """

    name: str
    group: str
    fault: str
    promise: str
    run: Callable[[Site], int | None]
    lake: str = "directory"
    own: bool = False
    compactor: str = "spark"
    plan: Callable[[Path], Plan] | None = None
    grace: str = "0s"


@dataclass
class Traffic:
    """A stream and the thread that publishes to it. `acked` has the payload of each acked message by sequence.

    Attributes:
        waits: (time of the publish on the monotonic clock, seconds until its ack), ascending.
        refused: errors in pub acks.
        pause_s: pause between two messages, s.
    """

    name: str
    acked: dict[int, bytes] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    waits: list[tuple[float, float]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    pause_s: float = PAUSE_S
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def publishing(self) -> bool:
        """Return True between `begin` and `end`."""
        return self._thread is not None and not self._stopping.is_set()

    @property
    def last(self) -> int:
        """Return the last acked sequence."""
        return max(self.acked, default=0)

    def live(self, through: int) -> dict[int, bytes]:
        """Return the acked messages with sequences through `through` that were not deleted."""
        return {seq: data for seq, data in self.acked.copy().items() if seq <= through and seq not in self.removed}

    def begin(self, address: tuple[str, int]) -> None:
        """Publish from a thread, one message at a time, until `end`."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._publish, args=(address,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop publishing."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(ACK_S * 2)

    def _publish(self, address: tuple[str, int]) -> None:
        with contextlib.suppress(Closed, OSError), Wire(address, timeout=ACK_S * 3) as wire:
            for number in itertools.count():
                if self._stopping.wait(self.pause_s):
                    return
                data = f"{self.name} {number} ".encode() + os.urandom(PAYLOAD // 2).hex().encode()
                began = time.monotonic()
                try:
                    frame = wire.request(f"{self.name}.{number % 5}", data)
                    answer: dict[str, Any] = (
                        frame.json() if frame.data else {"error": {"description": f"status {frame.status}"}}
                    )
                except WireTimeout:
                    answer = {"error": {"description": f"no ack within {ACK_S * 3} s"}}
                self.waits.append((began, time.monotonic() - began))
                if "error" in answer:
                    self.refused.append(answer["error"]["description"])
                else:
                    self.acked[answer["seq"]] = data


class Site:
    """A server with a lake, and its compactor. A context: leaving it ends all processes.

    Args:
        directory: a new one.
        lake: "directory" or "s3".
        compactor: see `Case`.
        plan, grace: see `Case`.

    Attributes:
        lake: root of the lake.
        store: directory of the server.
        proxy: what stands before the object store; None for a directory.
        environment: variables of the programs, besides those of this process.
        has_spark: the compactor is the real one.
        outage_s, history: `OUTAGE_S` and `HISTORY`, or less.
    """

    def __init__(
        self,
        directory: Path,
        lake: str = "directory",
        compactor: str = "spark",
        plan: Callable[[Path], Plan] | None = None,
        grace: str = "0s",
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.store = directory, directory / "store"
        self.place = directory / "lake"
        self.s3: S3Server | None = None
        self.proxy: Proxy | None = None
        self.compactor: Job | None = None
        self._compactor = compactor
        self.has_spark = compactor == "spark"
        self.outage_s, self.history = OUTAGE_S, HISTORY
        self._traffics: list[Traffic] = []
        self._programs: dict[str, subprocess.Popen[str]] = {}
        self._numbers = itertools.count()
        self.plan = None if plan is None else plan(directory)
        self.environment = {} if self.plan is None else self.plan.environment(build(TOOLS, SOURCE))
        self.lake = str(self.place)
        if lake == "s3":
            self.s3 = S3Server()
            self.lake = self.s3.url("the/lake")
        self.server = Server(
            Kind.OURS, self.store, args=["-m", "-1"], config=CONFIG.format(url=json.dumps(self.lake), grace=grace)
        )

    def __enter__(self) -> Site:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        if self.s3 is not None:
            self.s3.start()
            self.proxy = Proxy(self.s3.endpoint)
            self.proxy.start()
            self.environment |= self.s3.variables() | {"AWS_ENDPOINT_URL": self.proxy.url}
        self.server.environment |= self.environment
        self.server.start()
        if self._compactor:
            self.start_compactor()

    def __exit__(self, *exc: object) -> None:
        for traffic in self._traffics:
            traffic.end()
        self.stop_compactor()
        self.server.kill()
        for program in self._programs.values():
            assert program.stdin is not None
            program.stdin.close()
            try:
                program.wait(SETTLE_S)
            except subprocess.TimeoutExpired:
                program.kill()
        if self.proxy is not None:
            self.proxy.stop()
        if self.s3 is not None:
            self.s3.stop()

    # ------------------------------------------------------------------ processes
    def start_compactor(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the compactor, with more environment variables, and return once it is ready."""
        before, program = dict(os.environ), None
        if self._compactor == "small":
            program = [sys.executable, "-m", "tests.lake_faults.small_compactor"]
        os.environ.update(self.environment | {"LAKESTREAM_LEASE_SECONDS": LEASE_S} | dict(environment or {}))
        try:
            self.compactor = Job(self.lake, "--interval", "0.3", program=program)
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.compactor.wait_for("compactor ready", SETTLE_S)

    def stop_compactor(self) -> None:
        """Kill the compactor."""
        if self.compactor is not None:
            self.compactor.kill()
            self.compactor = None

    def logs(self) -> str:
        """Return the ends of the logs of server and compactor."""
        said = [] if self.compactor is None else self.compactor.lines[-30:]
        return "\n".join(["  -- server", self.server.log(30), "  -- compactor", *said])

    def ask(self, module: str, line: str, timeout_s: float) -> str:
        """Return the line with which a program answers another one; it is started once, with a lake of its own.

        Its errors are those of this process. After `timeout_s` it is killed, and there is no answer.
        """
        program = self._programs.get(module)
        if program is None or program.poll() is not None:
            lake = f"{self.lake}-{module}-{next(self._numbers)}"
            if self.s3 is None:
                Path(lake).mkdir()
            self._programs[module] = program = subprocess.Popen(
                [sys.executable, "-m", module, lake],
                env={**os.environ, **self.environment, **self.options()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert program.stdin is not None
        assert program.stdout is not None
        timer = threading.Timer(timeout_s, program.kill)
        timer.start()
        try:
            program.stdin.write(f"{line}\n")
            program.stdin.flush()
            # Spark's own programs write lines of theirs there.
            said = next((said.strip() for said in program.stdout if said.startswith(f"{line}:")), "")
        finally:
            timer.cancel()
        if not said:
            raise Broken(f"{module} has ended, or did not answer to {line} within {timeout_s:.0f} s")
        return said

    def end_case(self) -> None:
        """Stop all publishers, let all requests to an object store pass, and have a compactor for the next case."""
        for traffic in self._traffics:
            traffic.end()
        if self.proxy is not None:
            self.proxy.pass_all()
        if self._compactor and self.compactor is None:
            self.start_compactor()

    def restart(self) -> None:
        """Kill the server and start it again; publishers go on."""
        with self.quiet():
            self.server.kill()
            self.server.start()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Context in which nobody publishes."""
        publishing = [traffic for traffic in self._traffics if traffic.publishing]
        for traffic in publishing:
            traffic.end()
        try:
            yield
        finally:
            for traffic in publishing:
                traffic.begin(self.server.address)

    # ------------------------------------------------------------------ clients
    def wire(self) -> Wire:
        """Return a connection."""
        return Wire(self.server.address, timeout=ANSWER_S)

    def api(self, subject: str, body: Any = None) -> Any:
        """Request of the JetStream API; return the answer."""
        with self.wire() as wire:
            try:
                data = b"" if body is None else json.dumps(body).encode()
                return wire.request(f"$JS.API.{subject}", data, timeout=ANSWER_S).json()
            except WireTimeout:
                raise Broken(f"no answer to {subject} within {ANSWER_S:.0f} s") from None

    def traffic(self, name: str = "", pause_s: float = PAUSE_S, **config: Any) -> Traffic:
        """Create a stream, and publish to it from now on, until the case ends or `Traffic.end`."""
        name = name or f"S{len(self._traffics)}"
        answer = self.api(
            f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.*"], "allow_direct": True} | config
        )
        if "error" in answer:
            raise Broken(f"stream {name} cannot be created: {answer['error']}")
        traffic = Traffic(name, pause_s=pause_s)
        self._traffics.append(traffic)
        traffic.begin(self.server.address)
        return traffic

    def direct(self, traffic: Traffic, seq: int) -> Frame:
        """Return the answer to a direct get of a message."""
        with self.wire() as wire:
            try:
                body = b'{"seq":%d}' % seq
                return wire.request(f"$JS.API.DIRECT.GET.{traffic.name}", body, timeout=ANSWER_S)
            except WireTimeout:
                raise Broken(f"no answer to a direct get of message {seq} within {ANSWER_S:.0f} s") from None

    # ------------------------------------------------------------------ monitoring
    def status(self) -> dict[str, Any]:
        """Return what `lakestream status --json` prints."""
        return summary(snapshot(Monitor(f"http://127.0.0.1:{self.server.http_port}", "")))

    def warnings(self) -> str:
        """Return the warnings of `lakestream status`."""
        return "\n".join(self.status()["warnings"])

    def page(self, name: str) -> tuple[int, str]:
        """Return status and content of a monitoring page."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.server.http_port}/{name}", timeout=ANSWER_S) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def is_reachable(self) -> bool:
        """Return the server's metric of that name."""
        return "\nlakestream_lake_reachable 1.0\n" in self.page("metrics")[1]

    # ------------------------------------------------------------------ tables
    def table(self, traffic: Traffic) -> str:
        """Return path or URL of the table of a stream."""
        return paths.table(self.lake, traffic.name)

    def options(self) -> dict[str, str]:
        """Return the options with which deltalake reads a table, past the proxy."""
        return self.s3.variables() if self.s3 is not None else {}

    def rows(self, traffic: Traffic) -> list[tuple[int, bytes]]:
        """Return sequence and payload of each row of the table, in order of sequences; none without a table."""
        if not DeltaTable.is_deltatable(self.table(traffic), self.options()):
            return []
        delta = DeltaTable(self.table(traffic), storage_options=self.options())
        found = QueryBuilder().register("t", delta).execute("SELECT seq, data FROM t ORDER BY seq").read_all()
        columns = pa.table(found).to_pydict()
        return list(zip(columns["seq"], columns["data"], strict=True))

    # ------------------------------------------------------------------ promises
    def until(self, condition: Callable[[], bool], what: str, seconds: float = SETTLE_S) -> None:
        """Wait for what other processes do. Raise Broken, which says `what`, if it does not come."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise Broken(f"not within {seconds:.0f} s: {what}; status: {self.warnings()}")
            time.sleep(0.2)

    def in_table(self, traffic: Traffic, count: int) -> None:
        """Wait until so many messages are in the table and have left the log."""
        log = self.store / "jetstream" / "$G" / "streams" / traffic.name / "log"
        self.until(lambda: len(traffic.acked) >= count, "messages")
        self.until(lambda: len(self.rows(traffic)) >= count, f"the table has {count} messages")
        self.until(lambda: any(log.glob("*.outline")), "messages have left the log")

    def goes_on(self, traffic: Traffic, since: float = 0.0, messages: int = 20) -> None:
        """Check that publishes are acked, none slower than `ACK_S`, since a time of the monotonic clock; await some."""
        before = len(traffic.acked)
        self.until(lambda: len(traffic.acked) >= before + messages, f"{traffic.name} takes messages", ACK_S * 3)
        if traffic.refused:
            raise Broken(f"a publish was refused: {traffic.refused[0]}")
        slowest = max((wait for began, wait in traffic.waits.copy() if began >= since), default=0.0)
        if slowest > ACK_S:
            raise Broken(f"a pub ack took {slowest:.1f} s")

    def reads_recent(self, traffic: Traffic) -> None:
        """Check that the last message, which is in the log, is read at once."""
        seq = traffic.last
        if self.direct(traffic, seq).data != traffic.acked[seq]:
            raise Broken(f"message {seq}, which is in the log, is not read")

    def reads_history(self, traffic: Traffic, seq: int = 0) -> None:
        """Check that an old message is read."""
        seq = seq or min(traffic.live(traffic.last))
        frame = self.direct(traffic, seq)
        if frame.data != traffic.acked[seq]:
            raise Broken(f"message {seq} is not read: {frame.header.decode()!r}")

    def follows(self, traffic: Traffic) -> None:
        """Wait until the table has all messages of now, and check that it has each exactly once, that history is read,
        that no stream has a warning any more, and that the log has no traceback."""
        through = traffic.last
        wanted = traffic.live(through)

        def has_all() -> bool:
            with contextlib.suppress(Exception):  # deltalake raises bare Exception for what is replaced meanwhile
                return max((seq for seq, _ in self.rows(traffic)), default=0) >= max(wanted)
            return False

        self.until(has_all, f"the table of {traffic.name} has message {through}")
        rows = [row for row in self.rows(traffic) if row[0] <= through]
        if [seq for seq, _ in rows] != sorted(wanted):
            found = [seq for seq, _ in rows]
            missing, extra = sorted(set(wanted) - set(found))[:5], sorted(set(found) - set(wanted))[:5]
            twice = sorted({seq for seq in found if found.count(seq) > 1})[:5]
            raise Broken(f"the table is not the stream: missing {missing}, extra {extra}, doubled {twice}")
        if dict(rows) != wanted:
            raise Broken("rows of the table have other payloads than the messages")
        self.until(lambda: self.direct(traffic, min(wanted)).data == wanted[min(wanted)], "history is read again", 60)
        self.until(lambda: f"table of {traffic.name}:" not in self.warnings(), "the warning goes")
        if any(mark in self.server.log(2000) for mark in MARKS):
            raise Broken("the log has a traceback:\n" + self.server.log(60))


def consumed(site: Site, traffic: Traffic) -> list[tuple[int, bytes]]:
    """Return what a new consumer of all messages gets until it has to wait."""

    async def consume() -> list[tuple[int, bytes]]:
        client = await nats.connect(site.server.url)
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, inactive_threshold=30)
        sub = await client.jetstream().subscribe(f"{traffic.name}.>", ordered_consumer=True, config=config)
        found = []
        with contextlib.suppress(NatsTimeout):
            while True:
                message = await sub.next_msg(timeout=QUIET_S)
                found.append((message.metadata.sequence.stream, message.data))
        await client.close()
        return found

    return asyncio.run(consume())


def reads_truly(site: Site, traffic: Traffic, changed: set[int]) -> None:
    """Check that neither a consumer nor direct gets return anything but what was published, without gaps."""
    traffic.end()
    wanted = sorted(traffic.live(traffic.last).items())
    found = consumed(site, traffic)
    if found != wanted[: len(found)]:
        at = next(at for at, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other)
        raise Broken(f"a consumer got message {found[at][0]} in place of {wanted[at][0]}, or with another payload")
    if changed and found and found[-1][0] >= min(changed):
        raise Broken(f"a consumer passed {min(changed)}, whose row is changed")
    for seq in sorted(changed & set(traffic.acked))[:5]:
        frame = site.direct(traffic, seq)
        if frame.data != traffic.acked[seq] and frame.status < 500:
            raise Broken(f"a direct get of message {seq} returned {frame.header!r} {frame.data[:40]!r}")
    traffic.begin(site.server.address)
