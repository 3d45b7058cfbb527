"""Tests of what crosses a leaf connection: announcements, messages, rights, and the agreed compression."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakestream.config.account_options import AllowResponses, Permissions, SubjectRule
from lakestream.logging import Logger
from lakestream.net.accounts.permissions import Rules
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import Congested
from lakestream.net.leaf.account import LeafAccount
from lakestream.net.leaf.exchange import PIECE_BYTES, Exchange, LeafEnded
from lakestream.net.leaf.packing import UNCOMPRESSED, LeafPacking, agreed
from lakestream.net.leaf.rights import Rights, as_user, of_user
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo, ListedMessages, Single, singly
from lakestream.protocol.delivered import ErrorLine
from lakestream.protocol.headers import REQUEST_INFO, build, get
from lakestream.protocol.leaf_wire import LeafInfo, LeafParser
from tests.unit.stream_world import ManualClock

pytestmark = pytest.mark.unit


class Line:
    """A connection that keeps what is written."""

    congested = False

    def __init__(self, identifier: int) -> None:
        self.id, self.name = identifier, f"leaf {identifier}"
        self.written = b""
        self.stalled: list[Congested] = []

    def write(self, data: bytes) -> None:
        self.written += data

    def on_drain(self, callback: Callable[[], None]) -> None:
        callback()

    def stall(self, receiver: Congested) -> None:
        self.stalled.append(receiver)

    def complain(self, text: str) -> None:
        self.written += text.encode()

    def answered(self) -> None: ...

    def informed(self, info: LeafInfo) -> None: ...

    def told(self, error: ErrorLine) -> None: ...


class World:
    """One account with leaf connections, and a turn that ends when it is told to."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.hub = Hub(Turn(self.soon.append), Logger())
        self.account = LeafAccount(self.hub, "hub", is_system=False)
        self.number = 0

    def leaf(self, rights: Rights | None = None, *, cluster: str = "", isolated: bool = False) -> tuple[Exchange, Line]:
        self.number += 1
        line = Line(self.number)
        client = ClientInfo(id=line.id, host="", account="$G", kind="Leafnode")
        exchange = Exchange(
            line, self.account, rights or Rights(), client, ManualClock(), cluster=cluster, isolated=isolated
        )
        exchange.open([])
        return exchange, line

    def turn(self) -> None:
        """End the turn."""
        while self.soon:
            callbacks, self.soon[:] = list(self.soon), []
            for callback in callbacks:
                callback()

    def told(self, line: Line) -> list[bytes]:
        """Return the lines that were written since the last call."""
        self.turn()
        written, line.written = line.written, b""
        return sorted(written.split(b"\r\n")[:-1])

    def takes(self, exchange: Exchange, data: bytes) -> None:
        exchange.handle(LeafParser().feed(data), len(data))


@pytest.fixture
def world() -> World:
    return World()


def _ignore(*_: object) -> None: ...


def test_a_flood_of_a_leaf_node_is_handled_in_slices_and_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, parser, got = [False], LeafParser(), list[bytes]()
    monkeypatch.setattr(Turn, "is_over", lambda turn: over[0])
    exchange, line = world.leaf()

    def arrived(message: Single) -> None:
        got.append(message.payload)
        over[0] = True  # by the first message of a slice

    world.hub.subscribe(
        b"a", singly(lambda subject, reply, header, payload, client: arrived(Single(b"", payload=payload)))
    )
    sent = [b"%d" % number for number in range(3000)]
    flood = b"".join(b"LMSG a %d\r\n%b\r\n" % (len(each), each) for each in sent)
    exchange.feed(parser, flood[:-1])
    assert got == sent[: len(got)]
    assert PIECE_BYTES // 20 < len(got) <= PIECE_BYTES // 12  # one piece
    exchange.feed(parser, flood[-1:])  # was read already
    exchange.feed(parser, b"PING\r\n")
    assert line.stalled == [world.hub.turn.later]
    while len(line.stalled) < 100 and len(got) < len(sent):
        before, over[0] = len(got), False
        exchange.read_on(parser)
        assert before < len(got) <= before + PIECE_BYTES // 12
    over[0] = False
    exchange.read_on(parser)
    assert (got, line.written.count(b"PONG"), len(line.stalled)) == (sent, 1, len(flood) // PIECE_BYTES)
    over[0] = True
    exchange.feed(parser, b"LMSG a 1\r\nx\r\n")  # a small read is no flood
    assert got[-1] == b"x"


def test_a_pong_follows_the_messages_of_its_turn(world: World) -> None:
    exchange, line = world.leaf()
    world.takes(exchange, b"LS+ a\r\n")
    world.hub.route(None, world.hub.system, Single(b"a", payload=b"x"))
    world.takes(exchange, b"PING\r\n")
    world.turn()
    assert line.written.endswith(b"LMSG a 1\r\nx\r\nPONG\r\n")


def test_changes_are_announced_once_a_turn_with_their_final_number(world: World) -> None:
    _, line = world.leaf()
    first = world.hub.subscribe(b"a", singly(_ignore))
    second = world.hub.subscribe(b"a", singly(_ignore))
    members = [world.hub.subscribe(b"q", singly(_ignore), b"g") for _ in range(3)]
    gone = world.hub.subscribe(b"never", singly(_ignore))
    gone.cancel()
    world.hub.subscribe(b"here", singly(_ignore), local=True)
    assert world.told(line) == [b"LS+ a", b"LS+ q g 3"]
    first.cancel()
    members[0].cancel()
    assert world.told(line) == [b"LS+ q g 2"]
    second.cancel()
    for member in members[1:]:
        member.cancel()
    assert world.told(line) == [b"LS- a", b"LS- q g"]


def test_interest_is_known_there_before_the_messages_of_its_turn(world: World) -> None:
    exchange, line = world.leaf()
    world.takes(exchange, b"LS+ ask\r\n")
    world.hub.subscribe(b"inbox", singly(_ignore))
    world.hub.send(Single(b"ask", b"inbox", payload=b"?"))
    world.turn()
    assert line.written == b"LS+ inbox\r\nLMSG ask inbox 1\r\n?\r\n"


def test_leaf_nodes_hear_of_each_other_but_not_of_their_own_cluster_nor_isolated(world: World) -> None:
    first, own = world.leaf(cluster="C")
    _, mate = world.leaf(cluster="C")
    _, other = world.leaf(cluster="D")
    _, isolated = world.leaf(isolated=True)
    world.takes(first, b"LS+ a\r\nLS+ q g 2\r\n")
    assert world.told(other) == [b"LS+ a", b"LS+ q g 2"]
    assert world.told(own) == world.told(mate) == world.told(isolated) == []
    world.hub.subscribe(b"q", singly(_ignore), b"g")
    assert world.told(other) == [b"LS+ q g 3"]
    assert world.told(own) == world.told(mate) == world.told(isolated) == [b"LS+ q g 1"]
    first.end()
    assert world.told(other) == [b"LS+ q g 1", b"LS- a"]


def test_messages_do_not_return_to_the_cluster_that_they_come_from(world: World) -> None:
    first, own = world.leaf(cluster="C")
    second, mate = world.leaf(cluster="C")
    third, other = world.leaf(cluster="D")
    for exchange in (first, second, third):
        world.takes(exchange, b"LS+ a\r\nLS+ a g 1\r\n")
    for line in (own, mate, other):
        world.told(line)
    world.takes(first, b"LMSG a | g 1\r\nx\r\n")
    assert world.told(other) == [b"LMSG a | g 1", b"x"]
    assert world.told(own) == world.told(mate) == []


def test_one_copy_carries_all_queue_groups(world: World) -> None:
    exchange, line = world.leaf()
    world.takes(exchange, b"LS+ a\r\nLS+ a g 1\r\nLS+ * h 1\r\n")
    for _ in range(2):
        world.hub.send(Single(b"a", payload=b"x"))
    world.turn()
    frames = line.written.split(b"\r\n")[:-1]
    assert frames[1::2] == [b"x", b"x"]
    assert all(sorted(frame.split()[3:5]) == [b"g", b"h"] for frame in frames[::2])


def test_acks_have_names_of_their_own_there(world: World) -> None:
    exchange, line = world.leaf()
    acked: list[bytes] = []
    world.hub.subscribe(b"$JS.ACK.>", singly(lambda subject, *_: acked.append(subject)))
    assert world.told(line) == []  # not before there is something to ack
    world.takes(exchange, b"LS+ deliver\r\n")
    world.hub.send(ListedMessages([Single(b"stored", b"$JS.ACK.S.C.1.2.3.4.5", b"", b"x")], to=b"deliver"))
    lines = world.told(line)
    [frame] = [one for one in lines if one.startswith(b"LMSG")]
    _, to, reply, _ = frame.split()
    name, _, shown = reply.partition(b"@")
    assert (to, shown) == (b"deliver", b"stored")
    assert name.startswith(b"$JS.ACK.hub.")
    assert any(one.startswith(b"LS+ $JS.ACK.hub.") for one in lines)
    world.takes(exchange, b"LMSG %b 4\r\n+ACK\r\n" % name)
    assert acked == [b"$JS.ACK.S.C.1.2.3.4.5"]


def test_what_a_user_may_not_ends_the_connection(world: World) -> None:
    permissions = Permissions(publish=SubjectRule(("p.>",), ("p.no",)), subscribe=SubjectRule(("s.>",), ("s.no",)))
    exchange, line = world.leaf(of_user(Rules(permissions), ["s.mine"], (b"$JS.API.",)))
    for subject in (b"p.x", b"s.x", b"z"):
        world.hub.subscribe(subject, singly(_ignore))
    assert world.told(line) == [b"LS+ p.x"]
    world.takes(exchange, b"LS+ >\r\nLMSG p.x 0\r\n\r\n")
    for subject in (b"s.x", b"s.no", b"s.mine", b"z", b"$JS.API.INFO"):
        world.hub.send(Single(subject))
    assert world.told(line) == [b"", b"LMSG s.x 0"]
    for data in (b"LMSG p.no 0\r\n\r\n", b"LMSG s.x 0\r\n\r\n", b"LS+ s.no\r\n", b"LS+ s.mine\r\n", b"LS+ p.x\r\n"):
        with pytest.raises(LeafEnded, match="Permissions Violation"):
            world.takes(exchange, data)


def test_answers_are_counted(world: World) -> None:
    permissions = Permissions(subscribe=SubjectRule(("s",)), responses=AllowResponses())
    exchange, _ = world.leaf(of_user(Rules(permissions), (), ()))
    world.takes(exchange, b"LS+ s\r\n")
    world.hub.send(Single(b"s", b"inbox", payload=b"?"))
    world.takes(exchange, b"LMSG inbox 0\r\n\r\n")
    with pytest.raises(LeafEnded, match='Publish to "inbox"'):
        world.takes(exchange, b"LMSG inbox 0\r\n\r\n")


def test_this_side_keeps_to_the_rights_of_its_user_there() -> None:
    rules = Rules(Permissions(publish=SubjectRule(("up.>",)), subscribe=SubjectRule(("down.>",))))
    rights = as_user(rules, ["up.secret"], ["down.spam"], ())
    assert [rights.sends(one) for one in (b"up.x", b"up.secret", b"down.x")] == [True, False, False]
    assert [rights.tells(one) for one in (b"down.x", b"down.spam", b"up.x", b"$LDS.x")] == [True, False, False, True]


@pytest.mark.parametrize(
    ("info", "heard"),
    [
        (b'{"acc":"OTHER","x":1}', b'{"acc":"$G","x":1}'),
        (b"{}", b'{"acc":"$G"}'),
        (b'{"acc":"$G"}', b'{"acc":"$G"}'),
        *((odd, odd) for odd in (b"OTHER", b'["OTHER"]', b'{"acc":5}', b"\xff", b"[" * 5000, b"")),
    ],
)
def test_a_leaf_node_speaks_for_its_own_account(world: World, info: bytes, heard: bytes) -> None:
    exchange, _ = world.leaf()
    seen: list[bytes] = []
    world.hub.subscribe(b"a", singly(lambda subject, reply, header, payload, client: seen.append(header)))
    block = build([(REQUEST_INFO, info)])
    world.takes(exchange, b"HMSG a r %d %d\r\n%bx\r\n" % (len(block), len(block) + 1, block))
    assert get(seen[0], REQUEST_INFO) == heard


def test_a_loop_ends_the_connection(world: World) -> None:
    exchange, _ = world.leaf()
    with pytest.raises(LeafEnded, match="Loop detected"):
        world.takes(exchange, b"LS+ %b\r\n" % world.account.loop_subject)


def test_the_modes_of_compression() -> None:
    for ours, theirs, mode in (
        ("s2_auto", "s2_auto", UNCOMPRESSED),
        ("accept", "s2_fast", UNCOMPRESSED),
        ("s2_best", "accept", UNCOMPRESSED),
        ("accept", "accept", "off"),
        ("off", "s2_fast", "off"),
        ("s2_fast", "off", "off"),
        ("s2_fast", "not supported", "off"),
        ("s2_fast", "", "off"),
    ):
        assert agreed(ours, theirs) == mode, (ours, theirs)
    with pytest.raises(ValueError, match='unsupported route compression mode "s2_x"'):
        agreed("s2_auto", "s2_x")


def test_packed_bytes_are_unpacked_however_they_are_cut() -> None:
    data = [b"PING\r\n", bytes(200_000), b"x" * 70_000]
    sender, receiver = LeafPacking(), LeafPacking()
    packed = b"".join(map(sender.packed, data))
    cut = [packed[at : at + 1000] for at in range(0, len(packed), 1000)]
    assert b"".join(map(receiver.unpacked, cut)) == b"".join(data)
