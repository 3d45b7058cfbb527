"""The step of a connection's pipeline that applies permissions and subject mappings.

Belongs here: decisions about one message of a restricted user, or of an account with mappings: map, reject, count as
a reply, hide. The rules are in permissions.py and config/mappings.py. A connection without either has no guard.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from lakestream.config.mappings import Mappings
from lakestream.net.accounts import permissions
from lakestream.net.accounts.permissions import PermissionViolation, ReplyPermissions, Rules
from lakestream.net.hub import Hub, MessageTracing
from lakestream.net.interest.subscription import Subscription, hides
from lakestream.ports import ClientInfo, Clock, Single
from lakestream.protocol.publishes import Publishes

RESERVED_SUBJECT = b"$NRG."

NODE = "Router"
"""The client kind of messages that another node of the cluster routes here."""


class Guard:
    """The guard of one connection.

    Args:
        rules: the permissions of its user; None: unrestricted.
        mappings: the subject mappings of its account; None: none.
        clock: for the lifetime of reply permissions.

    Attributes:
        filtering: messages of some subscription may be denied to the connection.
        answered: the last message that may be published is an answer, and allowed as that alone.
    """

    def __init__(self, rules: Rules | None, mappings: Mappings | None, clock: Clock) -> None:
        self.rules = rules
        self.mappings = mappings
        self._clock = clock
        self._replies = ReplyPermissions(rules.responses) if rules is not None and rules.responses is not None else None
        self.filtering = self.answered = False

    def is_same(self, rules: Rules | None, mappings: Mappings | None) -> bool:
        """Return True if a guard with these arguments would decide the same."""
        mine = None if self.rules is None else self.rules.permissions
        return mine == (None if rules is None else rules.permissions) and self.mappings is mappings

    # ------------------------------------------------------------------ in
    def mapped(self, subject: bytes) -> bytes | None:
        """Return the subject that a message is published to instead; None: it keeps its own."""
        return None if self.mappings is None else self.mappings.mapped(subject)

    def rejects_trace(self, tracing: MessageTracing, header: bytes) -> PermissionViolation | None:
        """Return why a traced message is rejected: the user may not publish to its trace destination; None: it may."""
        to = tracing.destination(header) if self.rules is not None else b""
        return permissions.publish_refusal(to) if to and not self.may_publish(to, answers=False) else None

    def rejects(self, subject: bytes, *, mapped: bool, tracing: MessageTracing | None) -> PermissionViolation | None:
        """Return why the user may not publish to `subject`; None: allowed.

        A request under the prefix of this server's domain is judged by the subject without it.
        """
        asked = subject if mapped or tracing is None else tracing.of_domain(subject)
        if asked.startswith(RESERVED_SUBJECT) or not self.may_publish(asked):
            return permissions.publish_refusal(asked)
        return None

    def parts(self, run: Publishes, tracing: MessageTracing | None) -> Iterator[tuple[int, int, Publishes | None]]:
        """Yield the parts (begin, end) of a run that the user may publish without a look at single messages, with the
        run under the subjects that they are published to; and between them, with None, those of which each message has
        to be looked at when those before it are routed: denied, perhaps an answer, or mapped by chance."""
        settled = {subject: self._settled(subject, tracing) for subject in {run.subjects[at] for at in run.starts}}
        routed = run
        if self.mappings is not None and any(to not in (None, subject) for subject, to in settled.items()):
            routed = run.with_subjects({name: name if to is None else to for name, to in settled.items()})
        begin, length = 0, len(run)
        if None in settled.values():
            for at, end in zip(run.starts, [*run.starts[1:], length], strict=True):
                if settled[run.subjects[at]] is None:
                    if begin < at:
                        yield begin, at, routed
                    yield at, end, None
                    begin = end
        if begin < length:
            yield begin, length, routed

    def _settled(self, subject: bytes, tracing: MessageTracing | None) -> bytes | None:
        """Return the subject that all messages to `subject` are published to; None if that has to be decided for each
        of them."""
        if self.mappings is not None and not self.mappings.fixed(subject):
            return None
        mapped = self.mapped(subject)
        to = subject if mapped is None else mapped
        asked = to if mapped is not None or tracing is None else tracing.of_domain(to)
        if asked.startswith(RESERVED_SUBJECT) or not (self.rules is None or self.rules.may_publish(asked)):
            return None
        return to

    def may_publish(self, subject: bytes, *, answers: bool = True) -> bool:
        """Return True if the user may publish to `subject`. `answers`: also as a reply to a message it received."""
        self.answered = False
        if self.rules is None or self.rules.may_publish(subject):
            return True
        if answers and self._replies is not None:
            self.answered = self._replies.spend(subject, self._clock.steady())
        return self.answered

    def may_subscribe(self, subject: bytes, queue: bytes) -> bool:
        """Return True if the user may subscribe. Deliveries are filtered from the first subscription on that covers a
        denied subject."""
        if self.rules is None:
            return True
        if not self.rules.may_subscribe(subject, queue):
            return False
        self.filtering = self.filtering or self.rules.filtered(subject)
        return True

    # ------------------------------------------------------------------ out
    def hides(self, subject: bytes) -> bool:
        """Return True if messages with this subject are not delivered to the connection."""
        return self.filtering and self.rules is not None and self.rules.hides(subject)

    def admits(self, subject: bytes, reply: bytes) -> bool:
        """Return True if a message is delivered, and permit the user to answer it."""
        if self.hides(subject):
            return False
        if reply and self._replies is not None:
            self._replies.received(reply, self._clock.steady())
        return True

    @property
    def answering(self) -> bool:
        """Return True if the user may answer messages that it received."""
        return self._replies is not None

    def received(self, replies: Sequence[bytes]) -> None:
        """Permit the user to answer messages with these reply subjects, b"" for none, which are delivered."""
        if self._replies is not None:
            now = self._clock.steady()
            for reply in replies:
                if reply:
                    self._replies.received(reply, now)

    @staticmethod
    def pass_on(hub: Hub, sub: Subscription, message: Single, client: ClientInfo) -> None:
        """Hand a denied message to another member of the queue group. Report no responders when all are denied."""
        subject, reply = message.subject, message.reply
        match = hub.interest_graph.match(subject)
        from_node = client.kind == NODE
        if sub.queue:
            # A message from another node is for members on this one.
            groups = (match.here or match).queues if from_node else match.queues
            for group in groups:
                members = [member for member in group if not hides(member.sink, subject)]
                if group[0].queue == sub.queue and members:
                    member = random.choice(members)
                    member.sink.take(member, message, 0, 1, client)
                    return
        # Of all denied subscribers the first one reports.
        denied_reporter = match.plain[:1] or next(iter(match.queues), [])
        if reply and not from_node and sub in denied_reporter:
            everybody = [*match.plain, *(member for group in match.queues for member in group)]
            if all(hides(listener.sink, subject) for listener in everybody):
                hub.no_responders(subject, reply)
