"""Dispatching requests to the node that answers them.

Belongs here: the leaders of all streams, forwarding a request of the JetStream API to another node, and holding it for
a while when no leader is known. A stream's replicas know their leader from Raft; leaders announce themselves to all
nodes, and the newest term counts.

The node to which a client is connected receives its request and publishes the answer: the node that answers may not
know the subscription to the reply subject yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from lakestream.meta.ports import AllAccounts, Peers
from lakestream.ports import ClientInfo, Clock, Single, Timer
from lakestream.protocol.accounts import GLOBAL_ACCOUNT
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import Request, Where
from lakestream.protocol.decoding import PackDecoder

LEADS = "leaders"
"""The call that announces leaders."""
CALL = "api"
"""The call that forwards a request."""
ANSWER = "api.answer"
"""The call that sends an answer to the node that received the request."""
MAX_HOPS = 4
"""Maximum number of times that a request is forwarded: beyond it the nodes disagree on the leader."""
HOLD_NS = 2_000_000_000
"""Requests wait for a missing leader for up to 2 s; after that they fail at once (10008)."""
DECIDED_HOLD_NS = 4_000_000_000
"""The answer to a request that is decided already waits for the leader for up to 4 s, as long as clients wait; after
that it is given without one."""
MAX_HELD = 10_000
"""Maximum number of waiting requests; further ones fail at once (10008). As many may wait until an account of an
operator is loaded here; further ones are dropped."""


class Forwarded(msgspec.Struct, array_like=True, frozen=True):
    """A request between nodes; see `Request` for the fields."""

    pattern: str
    tokens: list[str]
    reply: bytes
    header: bytes
    body: bytes
    client: ClientInfo
    hops: int
    stage: str
    origin: str
    account: str = GLOBAL_ACCOUNT
    """The account whose API is called, which the client's account may have imported."""


class _Answer(msgspec.Struct, array_like=True, frozen=True):
    """An answer for a client of another node."""

    reply: bytes
    body: bytes
    account: str = GLOBAL_ACCOUNT
    header: bytes = b""


_ANSWER = PackDecoder(_Answer)


class _Held:
    """A request that is held until there is a leader."""

    __slots__ = ("decided", "here", "request", "timer", "where")

    def __init__(
        self, request: Request, where: Where, here: Callable[[], None], decided: Callable[[], None] | None
    ) -> None:
        self.request, self.where, self.here, self.decided = request, where, here, decided
        self.timer: Timer | None = None


class AnsweringNode(Protocol):
    """Interface to this node, for `Requests`."""

    me: str
    alone: bool
    accounts: AllAccounts

    def answerer(self, where: Where, account: str, tokens: Sequence[str]) -> str:
        """Return the node that answers a request; "" when none is known."""

    def unavailable(self, where: Where, account: str, tokens: Sequence[str]) -> ApiError | None:
        """Return the error for a request without a known leader; None if this node may answer it all the same."""


class Requests:
    """The requests of one node's clients, and those that other nodes forward: each goes to the node that answers it."""

    def __init__(self, node: AnsweringNode, calls: Peers, clock: Clock) -> None:
        self._node, self._calls, self._clock = node, calls, clock
        self.on_answer: Callable[[str, Single], object] = lambda account, answer: None
        """Publishes (account, reply subject, answer, header) from another node to a client of this one."""
        self._accept: dict[tuple[str, str], Callable[[Forwarded], None]] = {}
        """Handlers by account and pattern."""
        self._early: deque[tuple[int, Forwarded]] = deque()
        """Requests (with the steady time, ns) of accounts that this node does not know yet, oldest first."""
        self._held: dict[_Held, None] = {}
        self._missing: dict[tuple[Where, str, str], int] = {}
        """Times (ns) since which a stream of an account, or the meta group, has had no known leader."""
        self._decoder = msgspec.msgpack.Decoder(Forwarded)
        calls.serve(CALL, self._on_forwarded)
        calls.serve(ANSWER, self._on_answered)

    def accept(self, account: str, pattern: str, handler: Callable[[Forwarded], None]) -> None:
        """Call `handler` with requests of this pattern that another node forwards."""
        self._accept[account, pattern] = handler
        if self._early:
            self._clock.call_soon(self._handle_early)  # soon: the rest of the account's API is being made

    def dispatch(
        self, request: Request, where: Where, here: Callable[[], None], decided: Callable[[], None] | None = None
    ) -> None:
        """Call `here`, forward the request, or hold it until its stream or the meta group has a leader.

        Without one the request fails with 10008, or `decided` is called: it answers what is carried out already.
        """
        key = (where, *(("", "") if where is Where.META else (request.about, request.tokens[0])))
        if self._try(request, where, here):
            self._missing.pop(key, None)
        else:
            now = self._clock.steady()
            if len(self._missing) >= MAX_HELD:
                self._missing.clear()  # mostly invented names; a leader still missing is soon entered again
            since = self._missing.setdefault(key, now)
            wait_ns = since + HOLD_NS - now if decided is None else DECIDED_HOLD_NS
            self._hold(_Held(request, where, here, decided), wait_ns)

    def again(self, request: Request, where: Where, here: Callable[[], None]) -> None:
        """Dispatch a request again that this node could not answer because it lost leadership."""
        if self._node.alone:
            request.fail(api_error(10008))
        else:
            self.dispatch(request, where, here)

    def forward(self, node: str, request: Request) -> bool:
        """Forward a request to a node. Return False if that is not connected."""
        came, at = (request.reply, request.header, request.body, request.client), request.origin or self._node.me
        where = (request.hops + 1, request.stage, at, request.account)
        forwarded = Forwarded(request.pattern, list(request.tokens), *came, *where)
        if node == self._node.me:
            self._clock.call_soon(lambda: self._handle(forwarded))
            return True
        return self._calls.tell(node, CALL, msgspec.msgpack.encode(forwarded))

    def answer(self, origin: str, account: str, reply: bytes, body: bytes, header: bytes = b"") -> bool:
        """Send an answer; return False if this node received the request, or the one that did is not connected."""
        if origin in ("", self._node.me):
            return False
        # Omit the global account: nodes of an earlier release know no other.
        answer: tuple[object, ...] = (reply, body, account, header) if header else (reply, body, account)
        if account == GLOBAL_ACCOUNT and not header:
            answer = (reply, body)
        return self._calls.tell(origin, ANSWER, msgspec.msgpack.encode(answer))

    def _on_answered(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        answered = _ANSWER.decode(body)
        self.on_answer(answered.account, Single(answered.reply, b"", answered.header, answered.body))

    def changed(self) -> None:
        """Dispatch held requests again: a leader has changed."""
        answerer = self._node.answerer
        for where, account, name in list(self._missing):
            if answerer(where, account, [name]):
                del self._missing[where, account, name]
        for held in list(self._held):
            if held in self._held and answerer(held.where, held.request.about, held.request.tokens):
                self._release(held)
                self.dispatch(held.request, held.where, held.here, held.decided)

    def _try(self, request: Request, where: Where, here: Callable[[], None]) -> bool:
        node = self._node.answerer(where, request.about, request.tokens)
        if node == self._node.me:
            here()
            return True
        return bool(node) and request.hops < MAX_HOPS and self.forward(node, request)

    def _hold(self, held: _Held, wait_ns: int) -> None:
        def expire() -> None:
            self._release(held)
            if held.decided is not None:
                held.decided()
                return
            error = self._node.unavailable(held.where, held.request.about, held.request.tokens)
            if error is None:
                held.here()
            else:
                held.request.fail(error)

        if wait_ns <= 0 or len(self._held) >= MAX_HELD:
            expire()
            return
        self._held[held] = None
        held.timer = self._clock.call_later(wait_ns, expire)

    def _release(self, held: _Held) -> None:
        self._held.pop(held, None)
        if held.timer is not None:
            held.timer.cancel()

    def _on_forwarded(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        self._handle(self._decoder.decode(body))

    def _handle(self, forwarded: Forwarded) -> None:
        handler = self._accept.get((forwarded.account, forwarded.pattern))
        if handler is None:
            self._node.accounts.of(forwarded.account)  # an account of an operator is loaded now
            handler = self._accept.get((forwarded.account, forwarded.pattern))
        if handler is not None:
            handler(forwarded)
            return
        now = self._clock.steady()
        while self._early and self._early[0][0] < now - HOLD_NS:
            self._early.popleft()
        if len(self._early) < MAX_HELD:  # of an unknown account or a newer release: its client may time out
            self._early.append((now, forwarded))

    def _handle_early(self) -> None:
        """Handle requests whose account is known by now, and drop those that are too old."""
        oldest = self._clock.steady() - HOLD_NS
        early, self._early = self._early, deque()
        for came_ns, forwarded in early:
            handler = self._accept.get((forwarded.account, forwarded.pattern))
            if came_ns < oldest:
                continue
            if handler is None:
                self._early.append((came_ns, forwarded))
            else:
                handler(forwarded)


class Leads(msgspec.Struct, array_like=True, frozen=True):
    """`leader` leads stream `uid` since `term`."""

    uid: str
    term: int
    leader: str


class Leaders:
    """The leaders of streams, as this node knows them. Set `on_changed` before the first node connects."""

    def __init__(self, peers: Peers) -> None:
        self.on_changed: Callable[[str], None] = lambda uid: None
        """Called with the uid of a stream whose leader has changed."""
        self._peers = peers
        self._known: dict[str, Leads] = {}
        self._decoder = msgspec.msgpack.Decoder(list[Leads])
        peers.serve(LEADS, self._on_leads)
        peers.watch(self._on_node)

    def of(self, uid: str) -> str:
        """Return the leader of a stream if it is connected; "" when none is known."""
        known = self._known.get(uid)
        return known.leader if known is not None and self._peers.alive(known.leader) else ""

    def note(self, uid: str, term: int, leader: str) -> None:
        """Record the leader that the stream's group on this node knows."""
        known = self._known.get(uid)
        if not leader or (known is not None and known.term >= term):
            return
        self._known[uid] = Leads(uid, term, leader)
        self.on_changed(uid)

    def lead(self, uid: str, term: int) -> None:
        """Record that this node leads and serves a stream, and announce it to every other node."""
        leads = self._known[uid] = Leads(uid, term, self._peers.me)
        encoded = msgspec.msgpack.encode([leads])
        for node in self._peers.connected():
            self._peers.tell(node, LEADS, encoded)
        self.on_changed(uid)

    def forget(self, uid: str) -> None:
        """Forget a stream that was removed."""
        self._known.pop(uid, None)

    def _on_node(self, node: str, up: bool) -> None:
        mine = [leads for leads in self._known.values() if leads.leader == self._peers.me]
        if up and mine:
            self._peers.tell(node, LEADS, msgspec.msgpack.encode(mine))
        for uid in [leads.uid for leads in self._known.values() if leads.leader == node]:
            self.on_changed(uid)

    def _on_leads(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        for leads in self._decoder.decode(body):
            self.note(leads.uid, leads.term, leads.leader)
