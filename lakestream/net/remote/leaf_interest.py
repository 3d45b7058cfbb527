"""Who listens on the other side of a leaf connection.

Belongs here: the subscribers there as subscriptions in an account's hub here, and which of them count. Only answers and
deliveries go over: the connection is there so that the other side can read our streams, not to make one subject space
of two. So a stream there takes in nothing that is published here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from lakestream.net.hub import Hub
from lakestream.net.interest.interest import Subscription
from lakestream.net.peers.remote_node import MAX_WEIGHT
from lakestream.ports import ClientInfo, Delivery
from lakestream.protocol.leaf_wire import Left, Listens, Names

ANSWERS = (b"_INBOX.", b"_R_.", b"_GR_.", b"$JSC.R.", b"$JS.M.", b"$JS.S.")
"""How the subjects begin that count: inboxes of clients, ways back from other accounts and clusters, and where mirrors
and sources of nats-server wait for answers and messages."""

MAX_SUBJECTS = 262_144
"""Subjects that are kept of those that are listened to there; further ones hear nothing."""


def _counts(subject: bytes) -> bool:
    """Whether answers to that subject go over. Each inbox has a token of its own, so who listens to all of them there
    does not hear those of the clients here."""
    prefix = next((prefix for prefix in ANSWERS if subject.startswith(prefix)), b"")
    return bool(prefix) and not subject.startswith((b"*", b">"), len(prefix))


class Way(Protocol):
    """The way to the other side."""

    @property
    def congested(self) -> bool:
        """More unsent bytes than the high-water mark."""

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call back once when no longer congested, or when gone."""

    def send(self, frames: Sequence[bytes], messages: int, size: int) -> None:
        """Send frames at the end of the turn. `size`: bytes of headers and payloads."""


class Listeners:
    """The subscribers there, as one receiver of messages (`hub.Carrier`).

    Args:
        hub: of the account here that is connected.
        names: of this server's own subjects there.
        way: to the other side.
        max_payload: of the other side; a larger message would cost the connection.
        too_large: told of each message that does not go over because of that: its subject and size.
    """

    echo = False

    def __init__(
        self, hub: Hub, names: Names, way: Way, max_payload: int, too_large: Callable[[bytes, int], None]
    ) -> None:
        self._hub, self._names, self._way = hub, names, way
        self._max_payload, self._too_large = max_payload, too_large
        self._subscriptions: dict[tuple[bytes, bytes], Subscription] = {}

    def __len__(self) -> int:
        """How many subjects count."""
        return len(self._subscriptions)

    def subjects(self) -> list[str]:
        """Those that count."""
        return [subject.decode("utf-8", "replace") for subject, _ in self._subscriptions]

    # ------------------------------------------------------------------ interest
    def begins(self, said: Listens) -> bool:
        """Somebody listens. False: there is no room to remember it."""
        if not _counts(said.subject):
            return True
        key = said.subject, said.queue
        old = self._subscriptions.pop(key, None)
        if old is None and len(self._subscriptions) >= MAX_SUBJECTS:
            return False
        sub = Subscription(self, said.subject, said.queue, b"")
        sub.carrier = self
        sub.weight = min(max(said.count, 1), MAX_WEIGHT) if said.queue else 1
        self._subscriptions[key] = sub
        # First in, then out: whoever watches the subject sees it listened to throughout.
        self._hub.join(sub)
        if old is not None:
            self._hub.leave(old)
        return True

    def ends(self, said: Left) -> None:
        """Nobody does any more."""
        sub = self._subscriptions.pop((said.subject, said.queue), None)
        if sub is not None:
            self._hub.leave(sub)

    def clear(self) -> None:
        """The connection has ended."""
        gone, self._subscriptions = self._subscriptions, {}
        for sub in gone.values():
            self._hub.leave(sub)

    # ------------------------------------------------------------------ sink
    @property
    def congested(self) -> bool:
        """See `Sink.congested`."""
        return self._way.congested

    def on_drain(self, callback: Callable[[], None]) -> None:
        """See `Sink.on_drain`."""
        self._way.on_drain(callback)

    def receive(
        self, sub: Subscription, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo
    ) -> None:
        """See `Sink.receive`."""
        self.carry(sub.queue, subject, ((subject, reply, header, payload),))

    def receive_many(self, sub: Subscription, messages: Sequence[Delivery]) -> None:
        """See `Sink.receive_many`: what comes from another account's stream goes to where it is listened for."""
        self.carry(sub.queue, sub.subject, messages)

    def carry(self, queue: bytes, to: bytes, messages: Sequence[Delivery]) -> None:
        """See `Carrier.carry`."""
        size = largest = 0
        for _, _, header, payload in messages:
            length = len(header) + len(payload)
            size += length
            if length > largest:
                largest = length
        if largest > self._max_payload:
            messages = self._fitting(messages)
        self._way.send(self._names.deliveries(to, queue, messages), len(messages), size)

    def _fitting(self, messages: Sequence[Delivery]) -> list[Delivery]:
        fitting = []
        for one in messages:
            size = len(one[2]) + len(one[3])
            if size > self._max_payload:
                self._too_large(one[0], size)
            else:
                fitting.append(one)
        return fitting

    def unheard(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        """See `Requester.unheard`."""
        header = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject
        self.carry(b"", reply, ((reply, b"", header, b""),))
