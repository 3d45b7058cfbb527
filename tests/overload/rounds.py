"""A round: one scenario against one server, measured before, during and after the flood.

Belongs here: starting the server on its core, samples of its memory and sockets, the quiet client's times, and what
follows from them: growth of memory, ratio of the 99th percentiles, time of recovery, and the flooded node's place in
its cluster.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests import certificates
from tests.cluster.nodes import Cluster, Node
from tests.faults.plan import SOURCE, Action, Call, Plan, Rule
from tests.overload.floods import Flooding
from tests.overload.gateways import Asker, Gateway
from tests.overload.quiet import STREAM, Quiet, Took
from tests.overload.scenarios import Scenario
from tests.power.journal import build
from tests.servers import Kind, Server
from tests.wire import Wire

SERVER_CORE, CLIENT_CORE = 0, 1
NICE = -15
"""Priority of the server: what else runs on the machine does not count as its latency."""
SAMPLE_S = 0.1
GIVE_UP_BYTES = 8 << 30
"""Above this the flood ends at once, for the machine's sake."""
RATIO = 5.0
"""Promised ratio of the quiet client's 99th percentiles, during the flood and before it."""
RECOVERY_S = 30.0


class Sample(msgspec.Struct, frozen=True):
    """The server at one time: seconds since the quiet client began, resident bytes, open sockets.

    Files are not counted: those of segments come and go with the lake, whatever clients do.
    """

    at: float
    rss: int
    sockets: int


class Measured(msgspec.Struct, frozen=True):
    """Result of a round.

    Attributes:
        told: errors and statuses by number.
        p99: 99th percentile (ms) by phase and kind of operation.
        recovered_s: time after the flood until memory, sockets and quiet client were as before; -1: never.
        load: load average of the machine at the begin, and at the end.
        split: what is left of the cluster other than it was; "": it is whole.
        begin, end: of the flood.
        slowest: by second: slowest publish or request (ms).
    """

    name: str
    kind: str
    base_rss: int
    growth: int
    left: int
    sockets: tuple[int, int, int]
    told: dict[str, int]
    p99: dict[str, dict[str, float]]
    recovered_s: float
    load: tuple[float, float]
    begin: float
    end: float
    died: bool
    samples: list[Sample]
    slowest: list[tuple[float, float]]
    split: str = ""

    @property
    def ratio(self) -> float:
        """Return the ratio of the 99th percentiles of publishes and requests (also to gateways, if there are any),
        during and before; the worst one."""
        kinds = [kind for kind in ("publish", "request", "gateway") if kind in self.p99["before"]]
        return max(self.p99["during"][kind] / self.p99["before"][kind] for kind in kinds)


class Sampler(threading.Thread):
    """Takes samples of processes until it is stopped."""

    def __init__(self, *pids: int) -> None:
        super().__init__(daemon=True)
        self.pids, self.samples = pids, list[Sample]()
        self._stopped = threading.Event()
        self.too_much = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            try:
                self.samples.append(sample(*self.pids))
            except OSError:
                return
            if self.samples[-1].rss > GIVE_UP_BYTES:
                self.too_much.set()

    def stop(self) -> None:
        """Stop; the samples stay."""
        self._stopped.set()
        self.join()


def sample(*pids: int) -> Sample:
    """Return the present state of a server: its process, those of its SQL listeners, and the gateways beside it."""
    pages = sockets = 0
    for each in (*pids, *(child for pid in pids for child in _children(pid))):
        try:
            pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
            names = os.listdir(f"/proc/{each}/fd")
        except OSError:
            if each in pids:
                raise
            continue  # it has ended meanwhile
        for name in names:
            with contextlib.suppress(OSError):  # closed meanwhile
                sockets += os.readlink(f"/proc/{each}/fd/{name}").startswith("socket:")
    return Sample(time.monotonic(), pages * os.sysconf("SC_PAGE_SIZE"), sockets)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()):
                found += [child, *_children(child)]
    return found


def pin(pid: int, core: int) -> None:
    """Let all threads of a process run on one core, before other processes where that is allowed."""
    for task in map(int, os.listdir(f"/proc/{pid}/task")):
        os.sched_setaffinity(task, {core})
    with contextlib.suppress(OSError):  # Linux schedules sessions as groups: a nice process alone changes nothing
        Path(f"/proc/{pid}/autogroup").write_text(str(NICE))


def slow_syncs(store: Path, milliseconds: int) -> dict[str, str]:
    """Return the environment of a server each of whose syncs of a flooded stream takes so long."""
    store.mkdir()
    plan = Plan(store.with_name("faults"), store)
    plan.set(Rule(Call.SYNC, "*FLOOD*", Action.DELAY, delay_us=milliseconds * 1000))
    return {**plan.environment(build(store.with_name("library"), SOURCE)), "UV_USE_IO_URING": "0"}


def run(scenario: Scenario, kind: Kind, quick: bool) -> Measured:
    """Run one round."""
    directory = Path(tempfile.mkdtemp(prefix="overload-"))
    store = directory / "store"
    environment = slow_syncs(store, scenario.slow_ms) if scenario.slow_ms else {}
    config = scenario.config
    if kind is Kind.REAL:
        config = "\n".join(line for line in config.splitlines() if "_total" not in line)
    cluster = Cluster(kind, directory, scenario.nodes, config=config) if scenario.nodes > 1 else None
    server = Server(kind, store, config=config, environment=environment) if cluster is None else cluster.nodes[0]
    try:
        if cluster is None:
            server.start()
            return _measure(scenario, server, quick)
        cluster.start()
        return _measured_whole(scenario, cluster, quick)
    finally:
        server.kill() if cluster is None else cluster.kill()
        shutil.rmtree(directory, ignore_errors=True)


def _measured_whole(scenario: Scenario, cluster: Cluster, quick: bool) -> Measured:
    """Flood one node of a cluster; see that it has kept its routes and its replicas."""
    for node in cluster.nodes[1:]:
        assert node.process is not None
        pin(node.process.pid, CLIENT_CORE)
    before = _routes(cluster.nodes[0])
    measured = _measure(scenario, cluster.nodes[0], quick)
    split = "" if (after := _routes(cluster.nodes[0])) == before else f"routes were {before} and are {after}"
    stream = cluster.api(f"STREAM.INFO.{STREAM}", node=cluster.nodes[0])
    replicas = stream.get("cluster", {}).get("replicas", [])
    if len(replicas) != scenario.nodes - 1 or not all(each["current"] for each in replicas):
        split += f"replicas of {STREAM}: {stream}"
    return msgspec.structs.replace(measured, split=split)


def _routes(node: Node) -> list[tuple[str, int]]:
    """Return the names of the nodes that a node is connected to, other than flooding ones, with their connections."""
    routes = node.page("routez")["routes"]
    return sorted((each["remote_name"], each["rid"]) for each in routes if each["remote_name"].startswith("n"))


def _measure(scenario: Scenario, server: Server, quick: bool) -> Measured:
    assert server.process is not None
    pid, load = server.process.pid, os.getloadavg()[0]
    pin(pid, SERVER_CORE)
    if scenario.prepare is not None:
        with Wire(server.address, scenario.login, 30) as wire:
            scenario.prepare(wire)
    gateways = [Gateway(name, server, scenario.login) for name in scenario.gateways]
    for gateway in gateways:
        pin(gateway.process.pid, SERVER_CORE)
    try:
        return _flooded(scenario, server, quick, gateways, load)
    finally:
        for gateway in gateways:
            gateway.end()


def _flooded(scenario: Scenario, server: Server, quick: bool, gateways: list[Gateway], load: float) -> Measured:
    assert server.process is not None
    authority = server.certificates / "ca.pem" if scenario.tls else None
    pids = (server.process.pid, *(gateway.process.pid for gateway in gateways))
    quiet, asker = Quiet(server.address, scenario.login, CLIENT_CORE, authority, scenario.nodes), Asker(gateways)
    asker.start()
    time.sleep(0.5)
    before, during, after = (3.0, 4.0, 4.0) if quick else (6.0, 10.0, 8.0)
    sampler = Sampler(*pids)
    zero = time.monotonic()
    sampler.start()
    time.sleep(before)
    base = sample(*pids)
    login = scenario.login if scenario.flood_login is None else scenario.flood_login
    works = [(work, {key: _placed(value, server) for key, value in some.items()}) for work, some in scenario.works]
    begin = time.monotonic()
    ports = _ports(server) | {gateway.name: gateway.port for gateway in gateways}
    flooding = Flooding(works, server.host, ports, login, CLIENT_CORE)
    sampler.too_much.wait(during)
    end = time.monotonic()
    told = flooding.end()
    stopped = time.monotonic()
    while time.monotonic() < stopped + RECOVERY_S:
        time.sleep(0.1)
        now = sampler.samples[-1] if server.running else base
        calm = now.rss - base.rss < scenario.keeps and now.sockets <= base.sockets + 4
        if calm and time.monotonic() > stopped + after:
            break
    sampler.stop()
    took = [*quiet.end(), *asker.end()]
    died = not server.running or any(gateway.process.poll() is not None for gateway in gateways)
    samples = [msgspec.structs.replace(each, at=round(each.at - zero, 2)) for each in sampler.samples]
    flooded = [each for each in sampler.samples if begin <= each.at <= stopped + 1]
    last = sampler.samples[-1]
    return Measured(
        name=scenario.name,
        kind=server.kind.value,
        base_rss=base.rss,
        growth=max(each.rss for each in flooded) - base.rss,
        left=last.rss - base.rss,
        sockets=(base.sockets, max(each.sockets for each in flooded), last.sockets),
        told=dict(told),
        p99={
            "before": _p99([each for each in took if zero <= each.at < begin]),
            "during": _p99([each for each in took if begin + 1 <= each.at < end]),
            "after": _p99([each for each in took if each.at >= stopped + 1]),
        },
        recovered_s=_recovered(sampler.samples, base, stopped, scenario.keeps),
        load=(load, os.getloadavg()[0]),
        begin=round(begin - zero, 2),
        end=round(end - zero, 2),
        died=died,
        samples=samples,
        slowest=_slowest(took, zero),
    )


def _placed(value: object, server: Server) -> object:
    return value.replace(certificates.PLACE, str(server.certificates)) if isinstance(value, str) else value


def _ports(server: Server) -> dict[str, int]:
    """Return the ports of a server's listeners, by the first word that its log has for them, in small letters."""
    found = re.findall(r"(?:Listening for|Starting) (\w+) .*:(\d+)$", server.log(), re.MULTILINE)
    return {name.lower(): int(port) for name, port in found}


def _p99(took: Sequence[Took]) -> dict[str, float]:
    found = {}
    for kind in ("publish", "request", "connect", *sorted({each.kind for each in took} & {"gateway"})):
        times = sorted(each.seconds for each in took if each.kind == kind)
        found[kind] = round(1000 * times[int(0.99 * (len(times) - 1))], 2) if times else float("nan")
    return found


def _recovered(samples: Sequence[Sample], base: Sample, stopped: float, keeps: int) -> float:
    high = [
        each.at
        for each in samples
        if each.at >= stopped and (each.rss - base.rss >= keeps or each.sockets > base.sockets + 4)
    ]
    if not high:
        return 0.0
    return -1.0 if high[-1] >= samples[-1].at - SAMPLE_S else round(high[-1] - stopped, 1)


def _slowest(took: Sequence[Took], zero: float) -> list[tuple[float, float]]:
    slow: dict[int, float] = {}
    for each in took:
        if each.kind in ("publish", "request") and each.at >= zero:
            second = int(each.at - zero)
            slow[second] = max(slow.get(second, 0.0), each.seconds)
    return [(float(second), round(1000 * slow[second], 2)) for second in sorted(slow)]
