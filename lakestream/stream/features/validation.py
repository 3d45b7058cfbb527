"""Validation: publishes are checked against their schemas before they are stored.

Belongs here: the publish rule of `lakestream.validate` (docs/typed-tables.md), and what it does with a message that
does not fit. Which schema a message has, and whether it fits, is the answer of `Definitions`.

    reject    the publish is refused (20006), before it gets a sequence
    tag       the message is stored with a header that names field and rule
    off       nothing is checked (default)

Only publishes of clients are checked, on the leader: messages of mirrors, sources, imports and backups were taken
elsewhere, or before. Markers of deleted keys have no payload, and no schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.publishes import WIDTH, Publishes
from lakestream.schemas import naming
from lakestream.schemas.errors import BadSchema, Misfit
from lakestream.schemas.naming import DELETIONS, OFF, SCHEMA_KEY, VALIDATE_KEY, WITH_TAG, Naming
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Given
from lakestream.stream.core.feature import Feature
from lakestream.stream.core.publish import MAX_HEADER_BYTES, NotReady, Publish, PublishRule, View

TAG = b"Lakestream-Misfit"
"""Header of a stored message that does not fit: `<field>: <rule>`."""
MAX_TAG = 300
"""Maximum length of the header's value, in bytes."""
_MARKERS = tuple(b"\r\n%b:" % name for name in DELETIONS)


class Definitions(Protocol):
    """The schemas of one account on this node."""

    def need(self) -> None:
        """Load the schemas, and follow their changes, from now on."""

    def misfit(self, rules: Naming, subject: bytes, header: bytes, payload: bytes) -> Misfit | None:
        """Return the reason why a message does not fit the schema that it has by `rules`; None if it fits, or has none.

        Raise NotReady if that is not known yet.
        """


class NoDefinitions:
    """`Definitions` of a server without a registry: no schema is known."""

    def need(self) -> None: ...

    def misfit(self, rules: Naming, subject: bytes, header: bytes, payload: bytes) -> Misfit | None:
        def wait(then: Callable[[ApiError | None], None]) -> None:
            then(api_error(20005, err="this server has no registry"))

        raise NotReady(wait)


def _check(view: View, message: Publish, given: Given) -> None:
    # Asked of every message with headers of the protocol, also where nothing is validated.
    if VALIDATE_KEY in view.config.metadata:
        view.feature(Validation).check(view, message)


class Validation(Feature):
    """The validation of one stream.

    Args:
        definitions: the schemas of its account.
    """

    rules = (PublishRule(_check, single=140, replicated=140),)

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._mode = OFF
        self._rules = Naming(())

    def configure(self, config: StreamConfig) -> None:
        self._mode = config.metadata.get(VALIDATE_KEY, OFF)
        try:
            self._rules = naming.parse(config.metadata.get(SCHEMA_KEY, naming.BY_HEADER))
        except BadSchema:  # of a backup, or of an older version: no message has a schema by its rules
            self._rules = Naming(())
        if self._mode != OFF:
            self._definitions.need()

    def judges_every_message(self) -> bool:
        return self._mode != OFF

    def passes_run(self, run: Publishes, begin: int, end: int) -> bool:
        rules, misfit, places, buf = self._rules, self._definitions.misfit, run.places, run.buf
        subjects = run.subjects
        try:
            for at in range(begin, end):
                payload = places[at * WIDTH + 2]
                if misfit(rules, subjects[at], b"", buf[payload : payload + places[at * WIDTH + 3]]) is not None:
                    return False
        except NotReady:
            return False
        return True

    def check(self, view: View, message: Publish) -> None:
        """Refuse a publish that does not fit, or tag it. Raise ApiError, NotReady."""
        if self._mode == OFF or message.client is None or _is_marker(message):
            return
        misfit = self._definitions.misfit(self._rules, message.subject, message.header, message.payload)
        if self._mode == WITH_TAG:
            _tag(view, message, misfit)
        elif misfit is not None:
            raise api_error(20006, misfit=f"{misfit.field or 'payload'}: {misfit.rule}: {misfit.text}")


def _is_marker(message: Publish) -> bool:
    return not message.payload and any(name in message.header for name in _MARKERS)


def _tag(view: View, message: Publish, misfit: Misfit | None) -> None:
    """Give a message the header that it deserves. Raise ApiError if there is no room for it."""
    header = message.header
    if TAG in header:  # a publisher's own
        header = headers.remove(header, [TAG])
    if misfit is not None:
        header = headers.append(header, [(TAG, tag_of(misfit))])
        size = len(header) + len(message.payload)
        if 0 < view.max_msg_size < size:
            raise api_error(10054)
        if len(header) > MAX_HEADER_BYTES:
            raise api_error(10097)
    message.header = header


def tag_of(misfit: Misfit) -> bytes:
    """Return the value of the header: ASCII, other characters of a field's name as escapes."""
    rule = misfit.rule.encode("ascii", "backslashreplace")
    field = (misfit.field or "payload")[:MAX_TAG]
    name = "".join(each if " " <= each <= "~" else each.encode("unicode_escape").decode() for each in field)
    return name.encode()[: MAX_TAG - len(rule) - 2] + b": " + rule
