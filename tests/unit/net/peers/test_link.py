"""Tests of one connection between workers: what is written in which turn, and that nothing is lost or reordered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from lakestream.net.listener import SetupError
from lakestream.net.peers.link import AT_ONCE_BELOW, Link
from lakestream.protocol.peer_wire import Control, frame_head
from lakestream.raft.group.ports import Channel

pytestmark = pytest.mark.unit


class Owner:
    """The node of a connection that only sends."""

    def made(self, link: Link) -> None:
        pass

    def control(self, link: Link, record: Control) -> None:
        pass

    def payload(self, link: Link, channel: int, payload: bytes) -> None:
        pass

    def answers_again(self, link: Link) -> None:
        pass

    def lost(self, link: Link) -> None:
        pass

    def insecure(self, link: Link, error: SetupError) -> None:
        pass


Ends = tuple[Link, socket.socket]


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    here, there = socket.socketpair()
    there.setblocking(False)
    link = Link(Owner(), 1, 60.0)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=here)
    link.rise()
    yield link, there
    link.abort("done")
    await link.gone
    there.close()


def framed(channel: Channel, payload: bytes) -> bytes:
    return frame_head(channel, len(payload)) + payload


async def test_few_messages_for_another_worker_are_sent_at_once(ends: Ends) -> None:
    link, there = ends
    link.send(Channel.ROUTE, b"few")
    assert there.recv(1 << 16) == framed(Channel.ROUTE, b"few")
    link.send(Channel.CALL, b"call")
    link.send(Channel.ROUTE, b"x" * AT_ONCE_BELOW)
    with pytest.raises(BlockingIOError):
        there.recv(1 << 16)
    link.send(Channel.ROUTE, b"behind them")
    whole = framed(Channel.CALL, b"call") + framed(Channel.ROUTE, b"x" * AT_ONCE_BELOW)
    assert there.recv(1 << 16) == whole + framed(Channel.ROUTE, b"behind them")


async def test_what_a_full_socket_does_not_take_follows_in_order(ends: Ends) -> None:
    link, there = ends
    sent = [b"%d" % number * 1000 for number in range(2000)]
    for each in sent:
        assert link.send(Channel.ROUTE, each)
    got, whole = b"", b"".join(framed(Channel.ROUTE, each) for each in sent)
    while len(got) < len(whole):
        got += await asyncio.get_running_loop().sock_recv(there, 1 << 20)
    assert got == whole
