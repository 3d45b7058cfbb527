"""Checks of the simulated servers.

Belongs here: what healthy means, and the comparison of all replicas with each other and with what clients were told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lakestream.log.format.errors import CorruptLog
from tests.sim.checks import Violation
from tests.sim.whole.machine import Host

if TYPE_CHECKING:
    from lakestream.stream.core.stream import StreamCore as Served
    from tests.sim.whole.workload import Stream
    from tests.sim.whole.world import World

Content = dict[int, tuple[bytes, bytes, bytes, int]]
"""Subject, payload, header and time by sequence."""


def streams_of(host: Host) -> dict[str, Served]:
    """Return the streams that a server has replicas of."""
    if host.node is None or host.node.jetstream is None:
        return {}
    return {stream.name: stream for stream in host.node.jetstream.engines.streams()}


def unhealthy(world: World) -> list[str]:
    """Return what is not as it should be without faults; empty: all is healthy."""
    found: list[str] = []
    names = set(world.hosts)
    for host in world.hosts.values():
        node = host.node
        if node is None or not host.ready or node.jetstream is None:
            found.append(f"{host.name} is not up")
            continue
        meta = node.jetstream.node.meta
        if set(node.cluster.peers.connected()) | {host.name} != names:  # type: ignore[union-attr]
            found.append(f"{host.name} is connected to {node.cluster.peers.connected()}")  # type: ignore[union-attr]
        if not meta.leader or not meta.caught_up:
            found.append(f"{host.name}: meta leader {meta.leader!r}, caught up {meta.caught_up}")
        elif set(meta.membership.voters) != names:
            found.append(f"{host.name}: meta members {meta.membership}")
    if found:
        return found
    for name, stream in world.workload.streams.items():
        replicas = {
            host.name: each for host in world.hosts.values() if (each := streams_of(host).get(name)) is not None
        }
        if (len(replicas) != stream.replicas and stream.name != "SCALED") or not replicas:
            found.append(f"{name} has {len(replicas)} replicas: {sorted(replicas)}")
        if sum(each.leading for each in replicas.values()) != 1:
            found.append(f"{name} is led by {[node for node, each in replicas.items() if each.leading]}")
        if len({each.store.applied for each in replicas.values()}) > 1:
            found.append(f"{name}: applied { {node: each.store.applied for node, each in replicas.items()} }")
    return found


def lagging(world: World) -> list[str]:
    """Return the mirrors that have not everything yet."""
    streams = {host: streams_of(host) for host in world.hosts.values()}
    led = {name: each for found in streams.values() for name, each in found.items() if each.leading}
    found = []
    if "MIRROR" in led and led["MIRROR"].store.last_seq != led["EVENTS"].store.last_seq:
        found.append(f"MIRROR is at {led['MIRROR'].store.last_seq} of {led['EVENTS'].store.last_seq}")
    if "GATHERED" in led:
        wanted = led["EVENTS"].store.last_seq + led["SINGLE"].store.last_seq
        if led["GATHERED"].store.last_seq < wanted:
            found.append(f"GATHERED has {led['GATHERED'].store.last_seq} of {wanted}")
    return found


def damaged(world: World) -> list[str]:
    """Return the replicas that cannot be read as a whole; reading them begins their repair."""
    found = []
    for host in world.hosts.values():
        for name, served in streams_of(host).items():
            try:
                served.store.read_run(0, 1 << 40, 1 << 40)
            except CorruptLog as error:
                found.append(f"{name} on {host.name}: {error}")
    return found


def check_end(world: World, table_of: Callable[[str], Content]) -> None:
    """Compare all replicas with each other and with what clients were told. Raise Violation.

    Args:
        table_of: returns the content of a stream's table.
    """
    contents: dict[str, Content] = {}
    for name, stream in world.workload.streams.items():
        contents[name] = _agreed(world, name, table_of(name))
        if "mirror" not in stream.config and "sources" not in stream.config:
            _check_stream(stream, contents[name])
    if "MIRROR" in contents and contents["MIRROR"] != contents["EVENTS"]:
        raise Violation(f"the mirror differs: {difference(contents['MIRROR'], contents['EVENTS'])}")
    if "GATHERED" in contents:
        origins = [*contents["EVENTS"].values(), *contents["SINGLE"].values()]
        if sorted(each[:2] for each in contents["GATHERED"].values()) != sorted(each[:2] for each in origins):
            raise Violation("GATHERED does not have every message of its sources once")
    _check_changes(world, contents.get("KV_STATE", {}))
    for (name, consumer), delivered in world.delivered.items():
        for seq in world.workload.streams[name].acked:
            if not delivered[seq]:
                raise Violation(f"{name} > {consumer}: {seq} never came")


def _agreed(world: World, name: str, table: Content) -> Content:
    """Return the content of a stream, which all replicas must have."""
    contents = {
        host.name: full_content(each, table) for host in world.hosts.values() if (each := streams_of(host).get(name))
    }
    first, *others = contents
    for other in others:
        if contents[other] != contents[first]:
            raise Violation(f"{name} differs: {first} and {other}: {difference(contents[first], contents[other])}")
    return contents[first]


def _check_stream(stream: Stream, found: Content) -> None:
    name = stream.name
    for seq, sent in stream.acked.items():
        if seq in found:
            if found[seq][:2] != sent:
                raise Violation(f"{name}: {seq} was acked for {sent} and is {found[seq]}")
        elif stream.keeps and seq not in stream.consumed:
            raise Violation(f"{name}: {seq} was acked for {sent} and is gone")
    stored = [content[:2] for content in found.values()]
    for sent in stored:
        if sent not in stream.tried:
            raise Violation(f"{name}: {sent} was never published")
    present = set(stored)
    if len(present) != len(stored):
        raise Violation(f"{name}: {len(stored) - len(present)} messages are there twice")
    for batch, members in stream.batches.items():
        kept = sum(sent in present for sent in members)
        if kept not in (0, len(members)) or (batch in stream.committed and not kept):
            raise Violation(f"{name}: {kept} of {len(members)} messages of batch {batch} are there")


def _check_changes(world: World, found: Content) -> None:
    """Check that every change was the first one after the revision that it expected."""
    revisions: dict[bytes, list[int]] = {}
    for seq, content in found.items():
        revisions.setdefault(content[0], []).append(seq)
    for subject, _, seq in world.changes:
        revisions.setdefault(subject, []).append(seq)
    for subject, expected, seq in world.changes:
        between = [each for each in revisions[subject] if expected < each < seq]
        if between:
            raise Violation(f"{subject.decode()}: {seq} expected {expected}, and there was {between[0]}")


def full_content(stream: Served, table: Content) -> Content:
    """Return the messages of a replica: those of its log, and of the table what has left the log.

    Raises:
        Violation: a message is in neither.
    """
    local = {
        record.seq: (record.subject, record.data, record.header, record.time_ns)
        for record in stream.store.read_run(0, 1 << 40, 1 << 40)
    }
    found: Content = {}
    for seq in stream.store.live.members(1, 1 << 40):
        content = local.get(seq) or table.get(seq)
        if content is None:
            raise Violation(f"{stream.name}: {seq} is neither in the log nor in the table")
        found[seq] = content
    return found


def difference(one: Content, other: Content) -> str:
    for seq in sorted(one.keys() | other.keys()):
        if one.get(seq) != other.get(seq):
            return f"{seq}: {one.get(seq)} and {other.get(seq)}"
    return ""
