"""Balancing the load of workers.

Belongs here: the load of a worker, the estimate for each of its streams, and the decision of the first worker which
stream moves where. Only streams move: clients stay on the worker that the kernel chose. worker_moves.py moves a stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from lakestream.meta.assignments import ChangeStream
from lakestream.meta.node import MetaNode
from lakestream.protocol.decoding import PackDecoder

LOOK_NS = 2_000_000_000
"""Interval at which each worker tells its load (2 s)."""
BUSY = 0.7
"""Share of a core that the event loop of a worker takes when it is to give a stream away."""
HOT_LOOKS = 5
"""Looks in a row at which it takes that much (10 s)."""
LEAST_GAIN = 0.1
"""Share of a core by which the busier of the two workers has to get better by a move."""
QUIET_LOOKS = 15
"""Looks after a move before the next one (30 s)."""
MOST_STREAMS = 64
"""Busiest streams of a worker that are told."""
ENTRY_S, MESSAGE_S, DELIVERY_S = 200e-6, 1.2e-6, 1.0e-6
"""Estimated processor time of a log entry, of each message in it, and of a delivery. A message that comes alone is an
entry (tests/bench/bench_workers.py, js_sync and js_async)."""

MOST_SCALE = 4.0
"""Estimates are raised to the measured share, at most by this: a busy machine takes several times as long, and a worker
that is busy with its clients must not blame streams that do little."""

LOAD = "workers.load"
"""The call that tells the first worker a load."""


class WorkerLoad(msgspec.Struct, array_like=True, frozen=True):
    """Shares of a core that a worker's event loop takes, and its busiest streams by uid; of these only a busy one knows
    any."""

    share: float
    streams: dict[str, float] = {}


_LOAD = PackDecoder(WorkerLoad)


class Balancer:
    """Decides which stream moves. Sans-IO: it is given the loads of all workers every `LOOK_NS`."""

    def __init__(self) -> None:
        self._hot: dict[str, int] = {}
        self._quiet = 0

    def look(self, loads: Mapping[str, WorkerLoad]) -> tuple[str, str] | None:
        """Return the uid of a stream that should move, and the worker to which; None for now."""
        self._hot = {name: self._hot.get(name, 0) + 1 for name, load in loads.items() if load.share > BUSY}
        if self._quiet:
            self._quiet -= 1
            return None
        hot = [name for name, looks in self._hot.items() if looks >= HOT_LOOKS]
        if not hot or len(loads) < 2:
            return None
        source = max(hot, key=lambda name: loads[name].share)
        target = min(loads, key=lambda name: loads[name].share)
        there, here = loads[target].share, loads[source].share
        after = {uid: max(here - share, there + share) for uid, share in loads[source].streams.items()}
        uid = min(after, key=lambda each: after[each], default="")
        if not uid or here - after[uid] < LEAST_GAIN:
            return None  # such as the only busy stream: it would be as busy there
        self._hot, self._quiet = {}, QUIET_LOOKS
        return uid, target


class WorkerBalance:
    """Tells this worker's load to the first one, which has streams moved.

    Args:
        first: the name of the first worker.
        thread_s: returns the processor time of the event loop's thread (s).
    """

    def __init__(self, node: MetaNode, first: str, thread_s: Callable[[], float] = time.thread_time) -> None:
        self._node, self._meta, self._first, self._thread_s = node, node.meta, first, thread_s
        self._clock, self._balancer = node.shared.clock, Balancer()
        self._loads: dict[str, WorkerLoad] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._used_s, self._at_ns = thread_s(), self._clock.steady()
        self._stopped = False
        node.peers.serve(LOAD, self._told)

    def start(self) -> None:
        """Begin."""
        self._clock.call_later(LOOK_NS, self._look)

    def stop(self) -> None:
        """End."""
        self._stopped = True

    def _look(self) -> None:
        if self._stopped:
            return
        self._clock.call_later(LOOK_NS, self._look)
        used, now = self._thread_s(), self._clock.steady()
        passed = max(now - self._at_ns, 1) / 1e9
        share, self._used_s, self._at_ns = (used - self._used_s) / passed, used, now
        if share > BUSY:
            self._node.shared.share.run_in_steps(self._measure(share, passed))
            return
        self._seen = {}
        self._tell(WorkerLoad(share))

    def _measure(self, share: float, passed: float) -> Iterator[None]:
        """Estimate what each stream takes, by what it has done since the last look, if that was busy too."""
        before, self._seen = self._seen, {}
        streams = dict[str, float]()
        for replica in list(self._node.replicas.by_uid.values()):
            stream = replica.stream
            if stream is None or replica.memory or stream.config.mirror is not None:
                continue  # it stays
            delivered = sum(each.ledger.delivered_consumer for each in stream.consumers.values())
            seen = self._seen[replica.uid] = (stream.store.applied, stream.store.last_seq, delivered)
            if (then := before.get(replica.uid)) is not None:
                entries, messages, deliveries = (max(new - old, 0) for new, old in zip(seen, then, strict=True))
                took = entries * ENTRY_S + messages * MESSAGE_S + deliveries * DELIVERY_S
                if took:
                    streams[replica.uid] = took / passed
            yield
        busiest = sorted(streams.items(), key=lambda each: each[1], reverse=True)[:MOST_STREAMS]
        scale = min(share / max(sum(streams.values()), 1e-9), MOST_SCALE)
        self._tell(WorkerLoad(share, {uid: part * scale for uid, part in busiest}))

    def _tell(self, load: WorkerLoad) -> None:
        self._node.peers.tell(self._first, LOAD, msgspec.msgpack.encode(load))

    def _told(self, worker: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        """Take the load of a worker; decide, on the first one, when its own comes."""
        self._loads[worker] = _LOAD.decode(body)
        if worker != self._node.me:
            return
        there = {worker, *self._node.peers.connected()}
        self._loads = {name: load for name, load in self._loads.items() if name in there}
        move = self._balancer.look(self._loads)
        known = self._meta.state.by_uid.get(move[0]) if move is not None else None
        if move is not None and known is not None and self._meta.leading:
            self._meta.propose(ChangeStream(known.uid, known.config, (move[1],)), lambda outcome: None)
