"""Tests of runs of publishes between nodes: the same receivers, messages and order as for single messages."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.net.peers.routes import APART, CHANGES_IN_A_BUFFER
from lakestream.ports import ClientInfo, ListedMessages, Messages, PubAcks, Single
from lakestream.protocol.publishes import NOTHING_APART, BrokenRunError, Publishes, run_of
from lakestream.protocol.route_wire import NoResponders, Routed, RoutedRun, RouteInterest, encode
from tests.unit.route_world import ONE, A, B, C, Client, Cluster, pub, records

pytestmark = pytest.mark.unit

BLOCK = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"
RUN: list[tuple[bytes, ...]] = [(b"x", b"_INBOX.1.%d" % at, b"%d" % at) for at in range(5)]
ACK = b'{"stream":"S", "seq":'


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(A, B, C)


def sent(cluster: Cluster, sender: str, receiver: str) -> tuple[list[RoutedRun], list[Routed]]:
    """Return the runs and the single messages that a node has sent to another."""
    all_sent = records(cluster, sender, receiver)
    return [one for one in all_sent if type(one) is RoutedRun], [one for one in all_sent if type(one) is Routed]


class Stream:
    """Stand-in for a stream: takes runs of `x`, and acknowledges them when asked to."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.hub = cluster[node].hub
        self.came: list[tuple[Publishes, int, int]] = []
        self.single: list[bytes] = []
        self.hub.subscribe(b"x", self._take, runs=True)

    def _take(self, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        if isinstance(messages, Publishes):
            self.came.append((messages, begin, end))
        else:
            self.single += [each.payload for each in messages.messages(begin, end)]
        return end

    def acknowledge(self) -> None:
        seq = 1
        for run, begin, end in self.came:
            self.hub.send(PubAcks(run, begin, end, ACK, seq - begin))
            seq += end - begin
        self.came = []


# ---------------------------------------------------------------------- the wire
@pytest.mark.parametrize("digits", [b"%d", b"%03d"])
@pytest.mark.parametrize("reply", [b"", b"r"])
def test_the_commands_of_a_part_are_those_that_came(digits: bytes, reply: bytes) -> None:
    singles = [
        b"PUB %b %b%b\r\n%b\r\n" % (subject, reply + b" " if reply else b"", digits % len(payload), payload)
        for subject, payload in [(b"PUB", b"PUB x 1\r\n"), (b"a", b""), (b"a", b"1"), (b"b.c", b"\r\n")]
    ]
    run = run_of(b"".join(singles), NOTHING_APART)
    for begin in range(len(singles)):
        for end in range(begin + 1, len(singles) + 1):
            assert run.commands(begin, end) == b"".join(singles[begin:end])


@pytest.mark.parametrize("reply", [b"", b"r"])
def test_the_commands_of_a_part_with_header_blocks_are_those_that_came(reply: bytes) -> None:
    blocks = [BLOCK, b"", BLOCK, b"NATS/1.0\r\n\r\n"]
    singles = [pub(b"PUB", reply, b"%d" % at, block) for at, block in enumerate(blocks)]
    for first in (0, 1):
        run = run_of(b"".join(singles[first:]), NOTHING_APART)
        renamed = run.with_subjects({b"PUB": b"other"})
        for begin in range(first, len(singles)):
            for end in range(begin + 1, len(singles) + 1):
                part = begin - first, end - first
                assert run.commands(*part) == b"".join(singles[begin:end])
                assert renamed.commands(*part) == b"".join(
                    pub(b"other", reply, b"%d" % at, blocks[at]) for at in range(begin, end)
                )


@pytest.mark.parametrize(
    "commands", [b"", b"PUB a 1\r\nx\r\nPING\r\n", b"PUB a 1\r\nx\r", b"PUB a $r 1\r\nx\r\n", b"-"]
)
def test_what_is_no_run(commands: bytes) -> None:
    with pytest.raises(BrokenRunError, match="no run of publishes"):
        run_of(commands, APART)


def test_a_buffer_with_a_broken_run_is_refused(cluster: Cluster) -> None:
    with pytest.raises(BrokenRunError, match="no run of publishes"):
        cluster[B].arrived(A, encode([RoutedRun(b"PUB a 1\r\n")]))


@pytest.mark.parametrize("own", [False, True], ids=["a later buffer", "the same buffer"])
def test_a_broken_run_that_waits_for_its_turn_ends_the_connection(cluster: Cluster, own: bool) -> None:
    interest = RouteInterest([(b"x.%d" % number, b"", 1) for number in range(CHANGES_IN_A_BUFFER)])
    broken = RoutedRun(b"PUB a 1\r\n")
    buffers = [[interest, broken]] if own else [[interest, RouteInterest([(b"y", b"", 1)])], [broken]]
    for buffer in buffers:
        cluster[B].arrived(A, encode(buffer))
    assert A in cluster[B].routes.nodes
    cluster[B].turn()
    assert [type(error) for error in cluster[B].errors] == [BrokenRunError]
    assert A not in cluster[B].routes.nodes
    assert not len(cluster[B].hub.interest_graph)


# ---------------------------------------------------------------------- one record
def test_a_run_is_one_record_for_all_plain_subscribers_of_a_node(cluster: Cluster) -> None:
    there = [cluster.columnar(B), cluster.columnar(B)]
    for client in there:
        client.subscribe(b"x")
    cluster.settle()
    assert cluster.client(A).publish_run(RUN) == []
    cluster.settle()
    runs, single = sent(cluster, A, B)
    assert [(run.commands, run.groups) for run in runs] == [(b"".join(pub(*each) for each in RUN), None)]
    assert not single
    for client in there:
        assert [message for _, message in client.got] == [(b"x", reply, b"", payload) for _, reply, payload in RUN]
        assert client.from_nodes == [A] * len(RUN)
        assert client.runs == 1
    assert cluster[B].routes.nodes[A].in_msgs == cluster[A].routes.nodes[B].out_msgs == len(RUN)
    assert cluster[B].routes.nodes[A].in_bytes == cluster[A].routes.nodes[B].out_bytes == len(RUN)


def test_a_run_for_a_queue_group_on_one_other_node(cluster: Cluster) -> None:
    members = [cluster.columnar(B) for _ in range(3)]
    for client in members:
        client.subscribe(b"x", b"g")
    cluster.settle()
    cluster.client(A).publish_run(RUN * 20)
    cluster.settle()
    runs, single = sent(cluster, A, B)
    assert [run.groups for run in runs] == [[b"g"]]
    assert not single
    assert sorted(payload for client in members for payload in client.payloads) == sorted(
        payload for _, _, payload in RUN * 20
    )
    assert all(client.got for client in members)


def test_a_version_without_runs_gets_each_message_by_itself() -> None:
    cluster = Cluster(A, B, singly=[B])
    there = cluster.columnar(B)
    there.subscribe(b"x")
    stream = Stream(cluster, A)
    cluster.settle()
    cluster.client(A).publish_run(RUN)
    cluster.settle()
    runs, single = sent(cluster, A, B)
    assert not runs
    assert len(single) == len(RUN)
    assert there.payloads == [payload for _, _, payload in RUN]
    # And so do its clients with their pub acks.
    there.subscribe(b"_INBOX.1.*")
    cluster.settle()
    stream.acknowledge()
    cluster.settle()
    assert not sent(cluster, A, B)[0]
    assert there.payloads[len(RUN) :] == [ACK + b"%d}" % seq for seq in range(1, 6)]


def test_a_version_without_header_blocks_in_runs_gets_those_messages_by_themselves() -> None:
    headed = [*RUN, (b"x", b"", b"5", BLOCK)]
    cluster = Cluster(A, B, C, headless=[B])
    there = [cluster.columnar(B), cluster.columnar(C)]
    for each in there:
        each.subscribe(b"x")
    cluster.settle()
    cluster.client(A).publish_run(headed)
    cluster.client(A).publish_run(RUN)
    cluster.settle()
    (runs, single), (others, none) = sent(cluster, A, B), sent(cluster, A, C)
    assert [len(run_of(each.commands, APART)) for each in runs] == [5]
    assert [each.header for each in single] == [b""] * 5 + [BLOCK]
    assert [len(run_of(each.commands, APART)) for each in others] == [6, 5]
    assert not none
    assert there[0].got == there[1].got


def test_accounts_stay_apart() -> None:
    cluster = Cluster(A, B, accounts=[ONE])
    there, other = cluster.columnar(B, account=ONE), cluster.columnar(B)
    there.subscribe(b"x")
    other.subscribe(b"x")
    cluster.settle()
    cluster.client(A, account=ONE).publish_run(RUN)
    cluster.settle()
    assert (there.runs, other.runs) == (1, 0)


def test_a_run_keeps_its_place_between_other_messages(cluster: Cluster) -> None:
    there = cluster.columnar(B)
    there.subscribe(b"x")
    cluster.settle()
    here = cluster.client(A)
    here.publish(b"x", b"before")
    here.publish_run(RUN)
    cluster[A].hub.send(ListedMessages([Single(b"x", payload=b"behind")], to=b"x"))
    cluster.settle()
    assert there.payloads == [b"before", *(payload for _, _, payload in RUN), b"behind"]


def test_the_publisher_of_a_run_waits_for_a_congested_node(cluster: Cluster) -> None:
    cluster.columnar(B).subscribe(b"x")
    cluster.settle()
    cluster[A].full.add(B)
    here, turn = cluster.client(A), cluster[A].hub.turn
    here.publish_run(RUN)
    cluster[A].turn()
    assert turn.overrun is None
    here.publish_run(RUN)
    waiting: list[bool] = []
    assert turn.overrun is not None
    turn.overrun.on_drain(lambda: waiting.append(True))
    assert not waiting
    cluster[A].drain(B)
    assert waiting


# ---------------------------------------------------------------------- pub acks
def test_pub_acks_of_a_run_go_back_as_a_run(cluster: Cluster) -> None:
    stream, here = Stream(cluster, B), cluster.columnar(A)
    here.subscribe(b"_INBOX.1.*", sid=b"7")
    cluster.settle()
    here.publish_run(RUN)
    here.publish_run([(b"x", b"", b"no ack"), *RUN])
    cluster.settle()
    assert not stream.single
    stream.acknowledge()
    cluster.settle()
    seqs = [*range(1, 6), *range(7, 12)]
    assert here.got == [
        (b"7", (reply, b"", b"", ACK + b"%d}" % seq)) for seq, (_, reply, _) in zip(seqs, RUN + RUN, strict=True)
    ]
    assert here.runs == 2
    assert not sent(cluster, B, A)[1]


def test_acks_to_several_nodes_and_to_none(cluster: Cluster) -> None:
    stream, here, there = Stream(cluster, B), cluster.columnar(A), cluster.columnar(C)
    here.subscribe(b"_INBOX.a.*")
    there.subscribe(b"_INBOX.c.*")
    cluster.settle()
    replies = [b"_INBOX.a.1", b"_INBOX.c.1", b"_INBOX.nobody.1", b"", b"_INBOX.c.2", b"_INBOX.a.2"]
    here.publish_run([(b"x", reply, b"") for reply in replies])
    cluster.settle()
    stream.acknowledge()
    cluster.settle()
    assert [message[::3] for _, message in here.got] == [
        (b"_INBOX.a.1", ACK + b"1}"),
        (b"_INBOX.a.2", ACK + b"6}"),
    ]
    assert [message[::3] for _, message in there.got] == [
        (b"_INBOX.c.1", ACK + b"2}"),
        (b"_INBOX.c.2", ACK + b"5}"),
    ]


# ---------------------------------------------------------------------- interest that ended
def test_requests_of_a_run_that_find_no_subscriber_any_more(cluster: Cluster) -> None:
    there, here = cluster.columnar(B), cluster.client(A)
    sub = there.subscribe(b"x")
    here.subscribe(b"_INBOX.1.*")
    cluster.settle()
    here.publish_run([*RUN, (b"x", b"", b"no request")])
    there.unsubscribe(sub)
    cluster.settle()
    assert not there.got
    told = [record for record in records(cluster, B, A) if type(record) is NoResponders]
    assert [(record.subject, record.reply) for record in told] == [(b"x", reply) for _, reply, _ in RUN]
    assert here.alone == [(b"x", reply) for _, reply, _ in RUN]


def test_a_run_for_a_queue_group_moves_to_the_node_with_its_last_members(cluster: Cluster) -> None:
    there, further = cluster.columnar(B), cluster.columnar(C)
    sub = there.subscribe(b"x", b"g")
    cluster.settle()
    cluster.client(A).publish_run([*RUN, (b"x", b"", b"headed", BLOCK)])
    further.subscribe(b"x", b"g")
    cluster[C].turn()
    cluster.arrive(C, B)
    there.unsubscribe(sub)
    cluster.settle()
    assert not there.got
    whole = [(b"x", reply, b"", payload) for _, reply, payload in RUN] + [(b"x", b"", BLOCK, b"headed")]
    assert [message for _, message in further.got] == whole, "with their headers"


# ---------------------------------------------------------------------- against single messages
class Sub(NamedTuple):
    """Subscription of a client of its own. `leaves`: it ends while the messages are on their way."""

    node: str
    filter: bytes
    queue: bytes
    columnar: bool
    maximum: int
    leaves: bool


Said = list[list[tuple[bytes, bytes, bytes]]]
SUBJECTS = [b"a", b"a.b", b"b.c", b"a.b.c", b"a..b", b".", b"a."]
FILTERS = [b"a", b"a.b", b"b.c", b"*", b"a.*", b">", b"a.>"]
subs = st.builds(
    Sub,
    st.sampled_from([A, B, C]),
    st.sampled_from(FILTERS),
    st.sampled_from([b"", b"", b"g", b"h"]),
    st.booleans(),
    st.sampled_from([0, 0, 0, 3]),
    st.sampled_from([False, False, False, True]),
)
runs = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(SUBJECTS),
            st.sampled_from([b"", b"_INBOX.p.1", b"_INBOX.p.2"]),
            st.sampled_from([b"", b"", BLOCK]),
        ),
        min_size=1,
        max_size=12,
    ),
    min_size=1,
    max_size=4,
)


def result(
    listening: list[Sub], own: list[bytes], said: Said, in_runs: bool, singly: list[str], headless: list[str]
) -> dict[object, object]:
    """Publish from node A; return what each plain subscriber and each queue group got, and what nobody heard.

    The publisher, which has no echo, subscribes to `own`.
    """
    cluster = Cluster(A, B, C, singly=singly, headless=headless)
    publisher = cluster.columnar(A, echo=False)
    for filter_ in [b"_INBOX.p.*", *own]:
        publisher.subscribe(filter_)
    clients: list[tuple[Sub, Client]] = []
    ending = []
    for sub in listening:
        client = (cluster.columnar if sub.columnar else cluster.client)(sub.node)
        # The choice among a group is random: it must not decide how many messages the group gets.
        made = client.subscribe(sub.filter, sub.queue, maximum=0 if sub.queue else sub.maximum)
        clients.append((sub, client))
        if sub.leaves and not any(sub.queue and one.queue == sub.queue for one, _ in ending):
            ending.append((made, client))
    cluster.settle()
    number, unheard = 0, []
    for run in said:
        messages = [(subject, reply, b"%d" % at, block) for at, (subject, reply, block) in enumerate(run, number)]
        number += len(run)
        if in_runs:
            for begin, end in publisher.publish_run(messages):
                unheard += messages[begin:end]
        else:
            unheard += [each for each in messages if not publisher.publish(each[0], each[2], each[1], each[3])]
    for made, client in ending:
        client.unsubscribe(made)
    cluster.settle()
    found: dict[object, object] = {"unheard": unheard, "alone": sorted(publisher.alone), "own": publisher.got}
    found |= {place: client.got for place, (sub, client) in enumerate(clients) if not sub.queue}
    groups: dict[bytes, list[bytes]] = defaultdict(list)
    for sub, client in clients:
        if sub.queue:
            groups[sub.queue] += client.payloads
    return found | {queue: sorted(payloads) for queue, payloads in groups.items()}


OLDER = st.sampled_from([[], [], [B]])


@given(st.lists(subs, max_size=7), st.lists(st.sampled_from(FILTERS), max_size=1), runs, OLDER, OLDER)
@settings(max_examples=300, deadline=None)
def test_runs_and_single_messages_come_to_the_same(
    listening: list[Sub], own: list[bytes], said: Said, singly: list[str], headless: list[str]
) -> None:
    in_runs = result(listening, own, said, True, singly, headless)
    assert in_runs == result(listening, own, said, False, [], [])
