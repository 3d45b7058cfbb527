"""Targets: what other nodes of the cluster send.

What is decoded must survive another encoding, frames must not depend on how the stream is cut, and a Raft core goes on
after any message that it refuses.
"""

from __future__ import annotations

import contextlib
from random import Random

import msgspec

from lakestream.log.format.frame import Kind
from lakestream.log.format.record import encode_record
from lakestream.net.peers.routes import APART
from lakestream.protocol import peer_wire, route_wire
from lakestream.protocol.commands import Single
from lakestream.protocol.deliveries import FirstDeliveries
from lakestream.protocol.peer_wire import FrameReader, PeerWireError
from lakestream.protocol.publishes import run_of
from lakestream.raft.core.core import Core
from lakestream.raft.core.messages import (
    Append,
    AppendReply,
    Confirmed,
    Envelope,
    HardState,
    Install,
    InstallReply,
    LogEntry,
    Membership,
    Quiesce,
    Recover,
    RecoverTo,
    TimeoutNow,
    Vote,
    VoteReply,
    decode_envelopes,
    encode_envelopes,
    encode_membership,
)
from lakestream.raft.core.ready import RaftError
from lakestream.raft.core.terms import TermMap
from lakestream.raft.group.ports import Channel
from tests.fuzz.target import Target
from tests.fuzz.targets.protocol import CUTS, pieces

# ---------------------------------------------------------------------- routes


def _frames(parts: list[bytes]) -> tuple[list[tuple[int, bytes]], bool]:
    reader, found = FrameReader(), []
    with contextlib.suppress(PeerWireError):
        for part in parts:
            for each in reader.feed(part):
                found.append(each)
        return found, True
    return found, False


def _routes(data: bytes) -> None:
    if not data:
        return
    how, sent = data[0], data[1:]
    if how & 8:
        # Mutation does not hit the lengths of frames: the rest is one buffer.
        found = [(how >> 4 & 3, sent)]
    else:
        found, whole = _frames([sent])
        assert _frames(pieces(sent, CUTS[how & 7])) == (found, whole)
    for channel, payload in found:
        with contextlib.suppress(PeerWireError, msgspec.DecodeError):
            if channel == peer_wire.CONTROL:
                control = peer_wire.decode_control(payload)
                again = peer_wire.encode_control(control)[5:]
                assert peer_wire.decode_control(again) == control
            else:
                _records(payload)


def _records(payload: bytes) -> None:
    records = route_wire.decode(payload)
    assert route_wire.decode(route_wire.encode(records)) == records
    for record in records:
        if isinstance(record, route_wire.RoutedRun) and record.commands:
            with contextlib.suppress(AssertionError, ValueError):
                run = run_of(record.commands, APART)
                assert len(list(run.messages())) == len(run)
        elif isinstance(record, route_wire.StoredBatch):
            with contextlib.suppress(ValueError, IndexError, OverflowError):  # the connection ends with any
                stored = FirstDeliveries.of_columns(
                    record.records, record.lengths, record.head, record.consumer, record.left
                )
                assert stored.frames(b"1", 0, len(stored))[2] <= len(record.records), "more than the node sent"


NODE = peer_wire.NodeInfo(name="a", server_id="S", cluster="c", route="h:1", client_urls=("h:2",), jetstream=True)
CONTROLS = (
    peer_wire.Hello(1, NODE, "x", "u", "p", False, ("y",), (peer_wire.PeerAddress("b", "h:3"),)),
    peer_wire.PeerReady(),
    peer_wire.PeerRefused("cluster", "text", "a"),
    peer_wire.PeerPing(5),
    peer_wire.PeerPong(5),
    peer_wire.Gossip((peer_wire.PeerAddress("b", "h:3"),)),
    peer_wire.PeerUpdate(NODE, True),
    peer_wire.Bye("reason"),
)
RECORD = encode_record(7, 1, b"a", b"", b"x")
ROUTED = (
    route_wire.Within("ACC"),
    route_wire.RouteInterest([(b"a.>", b"", 1), (b"b", b"q", 0)]),
    route_wire.Routed(b"a", b"r", b"NATS/1.0\r\n\r\n", b"x", [b"", b"q"], False, True),
    route_wire.RoutedRun(b"PUB a 1\r\nx\r\nPUB a r 0\r\n\r\n", [b""]),
    route_wire.RouteBatch(b"a", b"q", [Single(b"a", payload=b"x")], True),
    route_wire.StoredBatch(b"i", b"", 1, RECORD, [len(RECORD)], b"$JS.ACK.S.C.1.", 5, 0),
    route_wire.Hold(b"a", True),
    route_wire.FlowMark(),
    route_wire.Took(),
    route_wire.NoResponders(b"a", b"r"),
)


def _route_seeds() -> list[bytes]:
    found = [bytes([1]) + peer_wire.encode_control(each) for each in CONTROLS]
    found += [bytes([8]) + peer_wire.encode_control(each)[5:] for each in CONTROLS]
    found += [bytes([0x18]) + route_wire.encode([each]) for each in ROUTED]
    buffer = route_wire.encode(ROUTED)
    found.append(bytes([3]) + peer_wire.frame_head(int(Channel.ROUTE), len(buffer)) + buffer)
    return [*found, b"\x08" + b"\x91" * 2000, b"\x18" + b"\x91" * 2000]


# ---------------------------------------------------------------------- Raft

TRIO = Membership(("a", "b", "c"))


def _raft(data: bytes) -> None:
    if not data:
        return
    envelopes = decode_envelopes(data[1:])
    again = decode_envelopes(encode_envelopes(envelopes))
    # A NaN equals nothing, and no field may hold one.
    assert again == envelopes
    core = Core("a", TRIO, HardState(), TermMap(), random=Random(1))
    for envelope in envelopes[:20]:
        with contextlib.suppress(RaftError):
            core.step("b" if data[0] & 1 else "c", envelope.message)
        if data[0] & 2:
            core.tick()
        term = core.term
        while (ready := core.ready()) is not None:
            for frame in ready.append:
                assert frame.kind in Kind
            if ready.append:
                core.persisted(ready.append[-1].index, ready.epoch)
        assert core.term >= term


MESSAGES = (
    Append(2, 0, 0, 0, [LogEntry(4, 2, 1, 0, b""), LogEntry(1, 2, 2, 1, b"x")], 7, (Confirmed("b", 1, 1),)),
    Append(
        2, 0, 0, 0, [LogEntry(5, 2, 1, 0, encode_membership(Membership(("a", "b"), ("c",)))), LogEntry(6, 2, 2, 0, b"")]
    ),
    Append(3, 2, 2, 2),
    AppendReply(1, 1, True, 1, 1, 0, 1),
    Vote(2, 0, 0, True, False, 1, 1),
    Vote(2, 0, 0, False, True),
    VoteReply(1, True, False, 1, 1),
    TimeoutNow(1),
    Install(2, 9, 2, TRIO, ((1, 1), (5, 2))),
    InstallReply(1, 9, True, 2),
    Quiesce(1, 1, 1),
    Recover(1, 5, True),
    RecoverTo(1, 5, 9),
    Recover(1, 5, False, 1, 1, 3, 1),
    RecoverTo(1, 5, 0, Recover(1, 5, False, 1, 1, 3, 1), [LogEntry(4, 1, 2, 0, b"")]),
)


def _raft_seeds() -> list[bytes]:
    found = [b"\x01" + encode_envelopes([Envelope("g", message)]) for message in MESSAGES]
    found.append(b"\0\x91\x92\xa1g" + b"\x91" * 2000)
    return [*found, b"\x02" + encode_envelopes([Envelope("g", message) for message in MESSAGES])]


TARGETS = (
    Target(
        "routes",
        "links between nodes: frames, control records, interest and messages",
        _routes,
        (),
        _route_seeds,
        (
            b"\x9a",
            b"\xa5hello",
            b"\xa5ready",
            b"\xa4ping",
            b"\xa6gossip",
            b"\xa1w",
            b"\xa1i",
            b"\xa1m",
            b"\xa1r",
            b"\xc4\x01",
        ),
    ),
    Target(
        "raft",
        "Raft messages (decoded, and stepped into a core)",
        _raft,
        (msgspec.DecodeError,),
        _raft_seeds,
        (
            b"\xa1a",
            b"\xa2ar",
            b"\xa1v",
            b"\xa2vr",
            b"\xa2tn",
            b"\xa2is",
            b"\xa2ir",
            b"\xa1q",
            b"\xa2rc",
            b"\xa2rt",
            b"\xcf",
        ),
    ),
)
