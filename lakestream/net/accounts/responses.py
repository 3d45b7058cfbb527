"""Reply paths of requests to services in other accounts.

Belongs here: the subjects that replace a requester's reply subject in the exporting account, the number of replies
that pass each, and its expiry. Requests are in service_imports.py.

Such a subject is `_R_.<account>.<path>`. One subscription receives all replies in an account, so that requests do
not change interest; the account's hub asks here whether a path is open.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal, Protocol

from msgspec.structs import replace

from lakestream.net.accounts.service_latency import REQUESTER_GONE, TIMEOUT, UNAVAILABLE, Measured
from lakestream.net.hub import Hub
from lakestream.net.interest.subscription import SingleSink, Subscription
from lakestream.ports import ClientInfo, Clock, MessageBlock, Single, Timer

MAX_REPLY_PATHS = 131_072
"""Open reply paths of an account (default). For one more, the path that is idle longest is closed."""

Kind = Literal["singleton", "stream", "chunked"]

_ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KEPT_REPLIES = (b"$JS.ACK.", b"$JS.FC.")
"""Reply subjects that are not replaced."""


class Opener(Protocol):
    """The service import that opened a reply path."""

    def unanswered(self, subject: bytes, reply: bytes) -> None:
        """Report that a request, called `subject` here, has no responders."""


class ReplyPath:
    """One reply path.

    Attributes:
        back: the reply paths of the requesting account.
        reply: the requester's reply subject.
        asked: the request's subject in the requesting account.
        opener: told when there are no responders.
        kind: the number of replies (`response_type`).
        threshold_ns: idle time after which the path is closed.
        due_ns: time at which it is closed.
        measured: the latency measurement of a request with one reply; None: none.
    """

    __slots__ = ("asked", "back", "due_ns", "kind", "measured", "opener", "reply", "threshold_ns")

    def __init__(
        self,
        back: Responses,
        asked: bytes,
        reply: bytes,
        kind: Kind,
        threshold_ns: int,
        opener: Opener | None,
        measured: Measured | None,
    ) -> None:
        self.back, self.asked, self.reply = back, asked, reply
        self.kind, self.threshold_ns, self.opener = kind, threshold_ns, opener
        self.due_ns = 0
        self.measured = measured


class Responses(SingleSink):
    """The reply paths out of one account on this server, and the sink of their subscription.

    Args:
        hub: of the exporting account.
        clock: for thresholds.
        max_paths: see `MAX_REPLY_PATHS`.

    Attributes:
        prefix: the common prefix of the subjects.
    """

    def __init__(self, hub: Hub, clock: Clock, max_paths: int = MAX_REPLY_PATHS) -> None:
        self.hub, self.clock, self._max_paths = hub, clock, max_paths
        self._random = random.Random()
        self.prefix = b"_R_.%b." % self._name()
        self._paths: dict[bytes, ReplyPath] = {}
        # Paths by threshold, the next one to close first. Invariant: every path is in one of them.
        self._lines: dict[int, dict[bytes, ReplyPath]] = {}
        self._timer: Timer | None = None
        self._due_ns = 0
        self._answering = hub.system, replace(hub.system, answers=True)
        """The last client that answered, and as what its answers are routed."""
        hub.responses = self
        hub.interest_graph.insert(Subscription(self, self.prefix + b"*", b"", b""))

    def __len__(self) -> int:
        """Return the number of open paths."""
        return len(self._paths)

    def __iter__(self) -> Iterator[tuple[bytes, ReplyPath]]:
        """Iterate over (subject, path) of the open paths."""
        return iter([(self.prefix + name, path) for name, path in self._paths.items()])

    def _name(self) -> bytes:
        return bytes(self._random.choices(_ALPHABET, k=6))

    # ------------------------------------------------------------------ paths
    def open(
        self,
        back: Responses,
        asked: bytes,
        reply: bytes,
        kind: Kind,
        threshold_ns: int,
        opener: Opener | None = None,
        measured: Measured | None = None,
    ) -> bytes:
        """Open a path to `reply` in the account of `back`; return its subject. For the arguments see `ReplyPath`."""
        name = self._name()
        while name in self._paths:
            name = self._name()
        if len(self._paths) >= self._max_paths:
            oldest = [next(iter(line.items())) for line in self._lines.values()]
            self._close(min(oldest, key=lambda one: one[1].due_ns)[0])
        path = self._paths[name] = ReplyPath(back, asked, reply, kind, threshold_ns, opener, measured)
        self._used(name, path)
        return self.prefix + name

    def _used(self, name: bytes, path: ReplyPath) -> None:
        """Restart the idle time of a path."""
        line = self._lines.setdefault(path.threshold_ns, {})
        line.pop(name, None)
        line[name] = path
        path.due_ns = self.clock.steady() + path.threshold_ns
        if self._timer is None or path.due_ns < self._due_ns:
            self._arm(path.due_ns)

    def _arm(self, due_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_ns = due_ns
        self._timer = self.clock.call_later(max(0, due_ns - self.clock.steady()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self.clock.steady()
        for line in list(self._lines.values()):
            while line:
                name, path = next(iter(line.items()))
                if path.due_ns > now:
                    break
                self._close(name)
                if path.measured is not None:
                    path.measured.failed(TIMEOUT)
        if self._lines:
            self._arm(min(next(iter(line.values())).due_ns for line in self._lines.values()))

    def _close(self, name: bytes) -> None:
        path = self._paths.pop(name)
        line = self._lines[path.threshold_ns]
        del line[name]
        if not line:
            del self._lines[path.threshold_ns]

    def close(self, subject: bytes) -> None:
        """Close a path."""
        name = subject[len(self.prefix) :]
        if name in self._paths:
            self._close(name)

    def stop(self) -> None:
        """Close all paths, for good."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._paths.clear()
        self._lines.clear()

    def resolve(self, subject: bytes) -> tuple[Hub, bytes] | None:
        path = self._paths.get(subject[len(self.prefix) :])
        return (path.back.hub, path.reply) if path is not None else None

    # ------------------------------------------------------------------ answers
    def receive(self, sub: Subscription, message: Single, client: ClientInfo) -> None:
        subject, reply = message.subject, message.reply
        name = subject[len(self.prefix) :]
        path = self._paths.get(name)
        if path is None:
            return
        # An empty message without headers ends any kind of reply, as in nats-server.
        if path.kind == "singleton" or not (message.header or message.payload):
            self._close(name)
        else:
            self._used(name, path)
        if reply:
            reply = self._returned(path, subject, reply)
        if client is not self._answering[0]:
            self._answering = client, replace(client, answers=True)
        found = path.back.hub.route(
            None, self._answering[1], Single(path.reply, reply, message.header, message.payload)
        )
        if not found and name in self._paths:
            self._close(name)
        if path.measured is not None:
            if found:
                path.measured.answered(client)
            else:
                path.measured.failed(REQUESTER_GONE)

    def _returned(self, path: ReplyPath, subject: bytes, reply: bytes) -> bytes:
        """Return the reply subject of a reply, as the requesting account sees it."""
        if reply.startswith(_KEPT_REPLIES):
            return reply
        return path.back.open(self, subject, reply, path.kind, path.threshold_ns)

    def deliver(self, messages: MessageBlock) -> bool:
        name = messages.to[len(self.prefix) :]
        path = self._paths.get(name)
        if path is None:
            return False
        if path.kind == "singleton":
            self._close(name)
            messages = messages[:1]
        else:
            self._used(name, path)
        if path.back.hub.send(messages.shown(path.reply)):
            return True
        if name in self._paths:
            self._close(name)
        return False

    def no_responders(self, sub: Subscription, subject: bytes, reply: bytes) -> None:
        """Report that the request behind the path `reply` has no responders."""
        name = reply[len(self.prefix) :]
        path = self._paths.get(name)
        if path is not None:
            self._close(name)
            if path.measured is not None:
                path.measured.failed(UNAVAILABLE)
            if path.opener is not None:
                path.opener.unanswered(path.asked, path.reply)
