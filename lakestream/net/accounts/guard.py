"""The step of a connection's pipeline that applies permissions and subject mappings.

Belongs here: decisions about one message of a restricted user, or of an account with mappings: map, reject, count as
a reply, hide. The rules are in permissions.py and config/mappings.py. A connection without either has no guard.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from lakestream.config.mappings import Mappings
from lakestream.net.accounts import permissions
from lakestream.net.accounts.permissions import Refusal, ReplyPermissions, Rules
from lakestream.net.hub import Hub, MessageTracing
from lakestream.net.interest.subscription import Subscription, hides
from lakestream.ports import ClientInfo, Clock, Delivery

RESERVED_SUBJECT = b"$NRG."

NODE = "Router"
"""The client kind of messages that another node of the cluster routes here."""


class Guard:
    """The guard of one connection.

    Args:
        rules: the permissions of its user; None: unrestricted.
        mappings: the subject mappings of its account; None: none.
        clock: for the lifetime of reply permissions.
    """

    def __init__(self, rules: Rules | None, mappings: Mappings | None, clock: Clock) -> None:
        self.rules = rules
        self.mappings = mappings
        self._clock = clock
        self._replies = ReplyPermissions(rules.responses) if rules is not None and rules.responses is not None else None
        self._filtering = False

    def is_same(self, rules: Rules | None, mappings: Mappings | None) -> bool:
        """Return True if a guard with these arguments would decide the same."""
        mine = None if self.rules is None else self.rules.permissions
        return mine == (None if rules is None else rules.permissions) and self.mappings is mappings

    # ------------------------------------------------------------------ in
    def mapped(self, subject: bytes) -> bytes | None:
        """Return the subject that a message is published to instead; None: it keeps its own."""
        return None if self.mappings is None else self.mappings.mapped(subject)

    def rejects_trace(self, tracing: MessageTracing, header: bytes) -> Refusal | None:
        """Return why a traced message is rejected: the user may not publish to its trace destination; None: it may."""
        to = tracing.destination(header) if self.rules is not None else b""
        return permissions.publish_refusal(to) if to and not self.may_publish(to, answers=False) else None

    def rejects(self, subject: bytes, *, mapped: bool, tracing: MessageTracing | None) -> Refusal | None:
        """Return why the user may not publish to `subject`; None: allowed.

        A request under the prefix of this server's domain is judged by the subject without it.
        """
        asked = subject if mapped or tracing is None else tracing.of_domain(subject)
        if asked.startswith(RESERVED_SUBJECT) or not self.may_publish(asked):
            return permissions.publish_refusal(asked)
        return None

    def may_publish(self, subject: bytes, *, answers: bool = True) -> bool:
        """Return True if the user may publish to `subject`. `answers`: also as a reply to a message it received."""
        if self.rules is None or self.rules.may_publish(subject):
            return True
        return answers and self._replies is not None and self._replies.spend(subject, self._clock.steady())

    def may_subscribe(self, subject: bytes, queue: bytes) -> bool:
        """Return True if the user may subscribe. Deliveries are filtered from the first subscription on that covers a
        denied subject."""
        if self.rules is None:
            return True
        if not self.rules.may_subscribe(subject, queue):
            return False
        self._filtering = self._filtering or self.rules.filtered(subject)
        return True

    # ------------------------------------------------------------------ out
    def hides(self, subject: bytes) -> bool:
        """Return True if messages with this subject are not delivered to the connection."""
        return self._filtering and self.rules is not None and self.rules.hides(subject)

    def admits(self, subject: bytes, reply: bytes) -> bool:
        """Return True if a message is delivered, and permit the user to answer it."""
        if self.hides(subject):
            return False
        if reply and self._replies is not None:
            self._replies.received(reply, self._clock.steady())
        return True

    def admitted(self, messages: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return those of a batch that are delivered, and permit the user to answer them."""
        if self._filtering:
            messages = [message for message in messages if not self.hides(message[0])]
        if self._replies is not None:
            now = self._clock.steady()
            for message in messages:
                if message[1]:
                    self._replies.received(message[1], now)
        return messages

    @staticmethod
    def pass_on(hub: Hub, sub: Subscription, message: Delivery, client: ClientInfo) -> None:
        """Hand a denied message to another member of the queue group. Report no responders when all are denied."""
        subject, reply = message[:2]
        match = hub.interest_graph.match(subject)
        from_node = client.kind == NODE
        if sub.queue:
            # A message from another node is for members on this one.
            groups = (match.here or match).queues if from_node else match.queues
            for group in groups:
                members = [member for member in group if not hides(member.sink, subject)]
                if group[0].queue == sub.queue and members:
                    member = random.choice(members)
                    member.sink.receive(member, *message, client)
                    return
        # Of all denied subscribers the first one reports.
        denied_reporter = match.plain[:1] or next(iter(match.queues), [])
        if reply and not from_node and sub in denied_reporter:
            everybody = [*match.plain, *(member for group in match.queues for member in group)]
            if all(hides(listener.sink, subject) for listener in everybody):
                hub.no_responders(subject, reply)
