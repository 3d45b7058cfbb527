"""Tests of stored messages on their way to other nodes: columns come to the same as a batch of single messages."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.log.format.record import encode_record
from lakestream.net.outbox import HIGH_WATER
from lakestream.ports import ListedMessages, Single
from lakestream.protocol.deliveries import FirstDeliveries
from lakestream.protocol.route_wire import RouteBatch, StoredBatch, decode, encode
from tests.unit.route_world import A, B, C, Cluster, records

pytestmark = pytest.mark.unit

HEAD = b"$JS.ACK.S.C.1."
HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"
Message = tuple[bytes, bytes, bytes]
SOME: list[Message] = [(b"s.%d" % at, HEADERS if at % 3 == 0 else b"", b"x" * at) for at in range(7)]


def stored(messages: list[Message], junk: bytes = b"", first: int = 5, step: int = 1) -> FirstDeliveries:
    """Return deliveries of these messages, whose records lie in one buffer with `junk` before each."""
    encoded = [encode_record(first + at * step, 1000 + at, *each) for at, each in enumerate(messages)]
    ends = list(accumulate(len(junk) + len(record) for record in encoded))
    offsets = [end - len(record) for end, record in zip(ends, encoded, strict=True)]
    buf = b"".join(junk + record for record in encoded)
    lengths = array("I", map(len, encoded))
    return FirstDeliveries(buf, array("I", offsets), lengths, 0, len(messages), HEAD, 11, 100)


def parts(messages: Iterable[Single]) -> list[tuple[bytes, ...]]:
    """Return messages as clients keep them."""
    return [(each.subject, each.reply, each.header, each.payload) for each in messages]


def kinds(cluster: Cluster, sender: str, receiver: str) -> list[type]:
    return [type(one) for one in records(cluster, sender, receiver) if isinstance(one, StoredBatch | RouteBatch)]


def test_a_delivery_to_another_node_is_its_records() -> None:
    cluster = Cluster(A, B)
    there = cluster.client(B)
    there.subscribe(b"inbox", sid=b"7")
    cluster.settle()
    assert cluster[A].hub.send(stored(SOME, step=2).addressed(b"inbox"))
    cluster.settle()
    assert kinds(cluster, A, B) == [StoredBatch]
    assert there.got == [
        (b"7", (subject, HEAD + b"%d.%d.%d.%d" % (5 + 2 * at, 11 + at, 1000 + at, 100 - at), header, data))
        for at, (subject, header, data) in enumerate(SOME)
    ]
    here, away = cluster[A].routes.nodes[B], cluster[B].routes.nodes[A]
    assert here.out_msgs == away.in_msgs == len(SOME)
    assert here.out_bytes == away.in_bytes == sum(len(header) + len(data) for _, header, data in SOME)


def test_a_version_without_columns_gets_a_batch() -> None:
    cluster = Cluster(A, B, singly=[B])
    there = cluster.client(B)
    there.subscribe(b"inbox")
    cluster.settle()
    cluster[A].hub.send(stored(SOME).addressed(b"inbox"))
    cluster.settle()
    assert kinds(cluster, A, B) == [RouteBatch]
    assert [message for _, message in there.got] == parts(stored(SOME))


def test_much_goes_in_several_records() -> None:
    cluster = Cluster(A, B)
    there = cluster.client(B)
    there.subscribe(b"inbox")
    cluster.settle()
    large = [(b"s", b"", b"x" * (HIGH_WATER // 3)) for _ in range(10)]
    cluster[A].hub.send(stored(large).addressed(b"inbox"))
    cluster.settle()
    assert kinds(cluster, A, B) == [StoredBatch] * 4
    assert [message for _, message in there.got] == parts(stored(large))


def test_a_queue_group_on_another_node_shares_the_messages() -> None:
    cluster = Cluster(A, B)
    members = [cluster.client(B) for _ in range(3)]
    for member in members:
        member.subscribe(b"to", b"g")
    cluster.settle()
    # The members of a group get single messages: each may be for another one.
    cluster[B].arrived(A, encode([StoredBatch(b"to", b"g", 0, *stored(SOME * 20).columns())]))
    assert sorted(message for each in members for _, message in each.got) == sorted(parts(stored(SOME * 20)))
    assert all(member.got for member in members)


def test_columns_move_to_the_node_with_the_last_members_of_their_group() -> None:
    cluster = Cluster(A, B, C)
    there, further = cluster.client(B), cluster.client(C)
    sub = there.subscribe(b"to", b"g")
    cluster.settle()
    cluster[A].hub.send(stored(SOME).addressed(b"to"))
    further.subscribe(b"to", b"g")
    cluster[C].turn()
    cluster.arrive(C, B)
    there.unsubscribe(sub)
    cluster.settle()
    assert not there.got
    assert [message for _, message in further.got] == parts(stored(SOME))


@pytest.mark.parametrize(
    "lengths",
    [[10], [1 << 20], [-1], [1 << 40], [60, 0], []],
    ids=["short", "long", "negative", "huge", "empty", "none"],
)
def test_columns_that_are_none_are_refused_or_empty(lengths: list[int]) -> None:
    cluster = Cluster(A, B)
    there = cluster.client(B)
    there.subscribe(b"to")
    cluster.settle()
    buffer = encode([StoredBatch(b"to", b"", 0, b"x" * 70, lengths, HEAD, 1, 1)])
    if lengths:
        with pytest.raises((ValueError, OverflowError)):
            cluster[B].arrived(A, buffer)
    else:
        cluster[B].arrived(A, buffer)
    assert not there.got


words = st.binary(min_size=1, max_size=9)
stored_messages = st.lists(
    st.tuples(words, st.sampled_from([b"", HEADERS]), st.binary(max_size=40)), min_size=1, max_size=9
)


@given(stored_messages, st.sampled_from([b"", b"junk"]), st.integers(1, 10**12), st.integers(1, 3), st.data())
@settings(max_examples=200, deadline=None)
def test_columns_are_the_messages(
    messages: list[Message], junk: bytes, first: int, step: int, data: st.DataObject
) -> None:
    whole = stored(messages, junk, first, step)
    begin = data.draw(st.integers(0, len(messages) - 1))
    end = data.draw(st.integers(begin + 1, len(messages)))
    part = whole[begin:end]
    assert isinstance(part, FirstDeliveries)
    again = FirstDeliveries.of_columns(*part.columns())
    assert list(again) == list(part) == list(whole)[begin:end]
    assert ListedMessages(list(part)).frames(b"7", 0, len(part)) == part.frames(b"7", 0, len(part))
    assert again.frames(b"7", 0, len(part)) == part.frames(b"7", 0, len(part))
    assert again.sizes() == part.sizes() == [sum(map(len, message)) for message in parts(part)]
    assert part.content() == part.frames(b"7", 0, len(part))[2] == sum(each.content_bytes for each in part)
    most = data.draw(st.integers(1, 400))
    assert [message for one in whole.parts(most) for message in one] == list(whole)


def test_a_message_of_a_batch_is_an_array_of_four_between_nodes() -> None:
    """As in versions that had no class for it."""
    one = (b"s", b"r", b"h", b"p")
    wire = encode([RouteBatch(b"to", b"g", [Single(*one)])])
    assert msgspec.msgpack.decode(wire) == [["b", b"to", b"g", [list(one)], False]]
    assert decode(wire) == [RouteBatch(b"to", b"g", [Single(*one)])]
