"""What stands before the connection of a user who may not do everything, or whose account maps subjects.

Belongs here: the ways a message takes in and out of such a connection: mapped, refused, answered, filtered. The
decisions are in permissions.py and mappings.py. A connection without a guard never comes here; one with a guard has
the guard's methods in the place of its own. The guard is a part of the connection and uses what is its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakestream.config.mappings import Mappings
from lakestream.net.accounts import refusals
from lakestream.net.accounts.permissions import Answers, Rules
from lakestream.net.hub import TRACED
from lakestream.net.interest.interest import Subscription
from lakestream.ports import ClientInfo, Delivery
from lakestream.protocol.commands import Publish
from lakestream.protocol.subjects import valid_literal

if TYPE_CHECKING:
    from lakestream.net.connection import Connection
    from lakestream.net.hub import Sink

RESERVED_REPLIES = (b"$JS.ACK.", b"_R_.")
RESERVED_SUBJECT = b"$NRG."

NODE = "Router"
"""The kind of client as which another node of the cluster brings messages."""


class Guard:
    """The guard of one connection.

    Args:
        connection: as it is without a guard.
        rules: what its user may do; None: everything.
        mappings: of its account; None: there are none.
    """

    def __init__(self, connection: Connection, rules: Rules | None, mappings: Mappings | None) -> None:
        self.rules = rules
        self.mappings = mappings
        self._of = connection
        self._receive, self._receive_many = connection.receive, connection.receive_many
        self._answers = Answers(rules.responses) if rules is not None and rules.responses is not None else None
        self._filtering = False

    def same(self, rules: Rules | None, mappings: Mappings | None) -> bool:
        """Whether a guard with these would be no other one."""
        mine = None if self.rules is None else self.rules.permissions
        return mine == (None if rules is None else rules.permissions) and self.mappings is mappings

    # ------------------------------------------------------------------ in
    def publish(self, command: Publish) -> None:
        """What the connection does with a PUB or HPUB otherwise, and with an eye on its subject."""
        of, came, reply, header = self._of, command.subject, command.reply, command.header
        of.in_msgs += 1
        of.in_bytes += len(command.payload) + len(header)
        if header and not of._headers:
            of.close("Message Header Violation")
            return
        if of._pedantic and not valid_literal(came):
            of._error("Invalid Publish Subject")
        mapped = None if self.mappings is None else self.mappings.mapped(came)
        subject = came if mapped is None else mapped
        hub, client = of.account.hub, of.client
        tracing = hub.tracing if header and TRACED in header else None
        if tracing is not None and self.rules is not None:
            trace = tracing.destination(header)
            if trace and not self.rules.may_publish(trace):
                of.refuse(refusals.publish(trace))
                return
        # A request under the prefix of this server's domain is permitted as what it asks.
        asked = subject if mapped is not None or hub.tracing is None else hub.tracing.of_domain(subject)
        if asked.startswith(RESERVED_SUBJECT) or not self._may_publish(asked):
            refusal = refusals.publish(asked)
            of.refuse(refusal)
            if tracing is not None:
                tracing.refused(client, came, mapped, header, command.payload, refusal.told)
            return
        if reply and reply.startswith(RESERVED_REPLIES):
            of.refuse(refusals.reply(reply))
            return
        of._ok()
        if tracing is None:
            found = hub.route(of, client, subject, reply, header, command.payload)
        else:
            found = tracing.route(of, client, came, reply, header, command.payload, mapped)
        if not found and reply and of._no_responders:
            of._nobody(subject, reply)

    def _may_publish(self, subject: bytes) -> bool:
        if self.rules is None or self.rules.may_publish(subject):
            return True
        return self._answers is not None and self._answers.spend(subject, self._of.owner.clock.steady())

    def may_subscribe(self, subject: bytes, queue: bytes) -> bool:
        """Whether it may listen so. From the first time on that this covers something denied, that is filtered out."""
        if self.rules is None:
            return True
        if not self.rules.may_subscribe(subject, queue):
            return False
        self._filtering = self._filtering or self.rules.filtered(subject)
        return True

    # ------------------------------------------------------------------ out
    def hides(self, subject: bytes) -> bool:
        """Whether a message with this subject is not delivered to the connection."""
        return self._filtering and self.rules is not None and self.rules.hides(subject)

    def receive(
        self, sub: Subscription, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo
    ) -> None:
        """See `Sink.receive`."""
        if self.hides(subject):
            self._pass_on(sub, subject, reply, header, payload, client)
            return
        if reply and self._answers is not None:
            self._answers.received(reply, self._of.owner.clock.steady())
        self._receive(sub, subject, reply, header, payload, client)

    def receive_many(self, sub: Subscription, messages: Sequence[Delivery]) -> None:
        """See `Sink.receive_many`."""
        if self._filtering:
            messages = [message for message in messages if not self.hides(message[0])]
        if self._answers is not None:
            now = self._of.owner.clock.steady()
            for message in messages:
                if message[1]:
                    self._answers.received(message[1], now)
        self._receive_many(sub, messages)

    def _pass_on(
        self, sub: Subscription, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo
    ) -> None:
        """A denied message goes to another member of the queue group. Its sender hears when it is denied to all."""
        hub = self._of.account.hub
        match = hub.interest_graph.match(subject)
        from_node = client.kind == NODE
        if sub.queue:
            # What another node sent here is for members on this one.
            groups = (match.here or match).queues if from_node else match.queues
            for group in groups:
                members = [member for member in group if not hides(member.sink, subject)]
                if group[0].queue == sub.queue and members:
                    member = random.choice(members)
                    member.sink.receive(member, subject, reply, header, payload, client)
                    return
        # One of those whom it is denied to speaks for all.
        spokesmen = match.plain[:1] or next(iter(match.queues), [])
        if reply and not from_node and sub in spokesmen:
            everybody = [*match.plain, *(member for group in match.queues for member in group)]
            if all(hides(listener.sink, subject) for listener in everybody):
                hub.alone(subject, reply)


def hides(sink: Sink, subject: bytes) -> bool:
    """Whether this sink is a connection that does not get messages with this subject."""
    guard = getattr(sink, "guard", None)
    return isinstance(guard, Guard) and guard.hides(subject)
