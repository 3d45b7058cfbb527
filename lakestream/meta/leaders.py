"""Which node leads which stream, as every node knows it.

Belongs here: telling the other nodes whenever this one begins to lead, and remembering what they tell. A stream's
replicas know their leader from Raft; all other nodes have it from here. What is newest by term counts.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lakestream.raft.group.ports import Calls, Peers

CALL = "leaders"
"""The call that tells who leads."""


class Leads(msgspec.Struct, array_like=True, frozen=True):
    """`leader` leads stream `uid` since `term`."""

    uid: str
    term: int
    leader: str


class Leaders:
    """What is known of leaders. Set `on_changed` before the first node connects."""

    def __init__(self, peers: Peers, calls: Calls) -> None:
        self.on_changed: Callable[[str], None] = lambda uid: None
        """Called with the uid of a stream whose leader is another than before."""
        self._peers, self._calls = peers, calls
        self._known: dict[str, Leads] = {}
        self._decoder = msgspec.msgpack.Decoder(list[Leads])
        calls.serve(CALL, self._told)
        peers.watch(self._node)

    def of(self, uid: str) -> str:
        """The node that leads a stream, if it is there; "" when nobody is known to."""
        known = self._known.get(uid)
        return known.leader if known is not None and self._peers.alive(known.leader) else ""

    def note(self, uid: str, term: int, leader: str) -> None:
        """Somebody leads, as far as the stream's group here knows."""
        known = self._known.get(uid)
        if not leader or (known is not None and known.term >= term):
            return
        self._known[uid] = Leads(uid, term, leader)
        self.on_changed(uid)

    def lead(self, uid: str, term: int) -> None:
        """This node leads and serves: every node is told."""
        leads = self._known[uid] = Leads(uid, term, self._peers.me)
        told = msgspec.msgpack.encode([leads])
        for node in self._peers.connected():
            self._calls.tell(node, CALL, told)
        self.on_changed(uid)

    def forget(self, uid: str) -> None:
        """The stream is gone."""
        self._known.pop(uid, None)

    def _node(self, node: str, up: bool) -> None:
        mine = [leads for leads in self._known.values() if leads.leader == self._peers.me]
        if up and mine:
            self._calls.tell(node, CALL, msgspec.msgpack.encode(mine))
        for uid in [leads.uid for leads in self._known.values() if leads.leader == node]:
            self.on_changed(uid)

    def _told(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        for leads in self._decoder.decode(body):
            self.note(leads.uid, leads.term, leads.leader)
