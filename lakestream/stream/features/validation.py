"""Validation: publishes are checked against their schemas before they are stored.

Belongs here: the publish rule of `lakestream.validate` (docs/typed-tables.md), and what it does with a message that
does not fit. Which schema a message has, and whether it fits, is the answer of `Definitions`.

    reject    the publish is refused (20006), before it gets a sequence
    tag       the message is stored with a header that names field and rule
    off       nothing is checked (default)

Only publishes of clients are checked, on the leader: messages of mirrors, sources, imports and backups were taken
elsewhere, or before. Markers of deleted keys have no payload, and no schema; nor do tombstones (schemas/naming.py).

The lake decodes a message by the version that it was checked by, whenever that happens. A pinned version follows from
the configuration, whose changes are entries of the log. `latest` is another version once this leader learns of it, and
that is no entry. So the leader logs the version before the first message that is checked by it, as an entry of progress
under `STATED`, which releases without it ignore. Footers of segments then say which schemas the messages have
(log/format/segment.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from lakestream.log.store.store import Store
from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.decoding import PackDecoder
from lakestream.protocol.publishes import WIDTH, Publishes
from lakestream.schemas import naming
from lakestream.schemas.errors import BadSchema, Misfit
from lakestream.schemas.naming import DELETIONS, OFF, SCHEMA_KEY, VALIDATE_KEY, WITH_TAG, Naming, empty_deletes
from lakestream.stream.core import offline
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Given
from lakestream.stream.core.feature import Feature
from lakestream.stream.core.operations import ConsumerProgress, CreateStream, Operation
from lakestream.stream.core.pipeline import Pipeline
from lakestream.stream.core.publish import MAX_HEADER_BYTES, IncomingMessage, NotReady, PublishRule, View

TAG = b"Lakestream-Misfit"
"""Header of a stored message that does not fit: `<field>: <rule>`."""
MAX_TAG = 300
"""Maximum length of the header's value, in bytes."""
STATED = ".schemas"
"""Name of the entries of progress with the latest versions; no consumer can have it."""
MAX_STATED = 200
"""Maximum number of schemas whose latest version is logged because of headers; further ones go by time."""
_HEADER = b"\r\n" + naming.HEADER + b":"
_versions = PackDecoder(dict[str, int])
_MARKERS = tuple(b"\r\n%b:" % name for name in DELETIONS)


class _State(msgspec.Struct, frozen=True):
    """The feature's field of a checkpoint. Earlier releases wrote none."""

    schema_versions: dict[str, int] = {}


_CHECKPOINT = PackDecoder(_State)


class Definitions(Protocol):
    """The schemas of one account on this node."""

    @property
    def changes(self) -> int:
        """Return the number of changes of the schemas that this node has seen."""

    def latest(self, name: str) -> int:
        """Return the latest version of a schema by which messages are checked now; 0 if it is not known."""

    def need(self) -> None:
        """Load the schemas, and follow their changes, from now on."""

    def misfit(self, rules: Naming, subject: bytes, header: bytes, payload: bytes) -> Misfit | None:
        """Return the reason why a message does not fit the schema that it has by `rules`; None if it fits, or has none.

        Raise NotReady if that is not known yet.
        """


class NoDefinitions:
    """`Definitions` of a server without a registry: no schema is known."""

    changes = 0

    def latest(self, name: str) -> int:
        return 0

    def need(self) -> None: ...

    def misfit(self, rules: Naming, subject: bytes, header: bytes, payload: bytes) -> Misfit | None:
        def wait(then: Callable[[ApiError | None], None]) -> None:
            then(api_error(20005, err="this server has no registry"))

        raise NotReady(wait)


def _check(view: View, message: IncomingMessage, given: Given) -> None:
    # Asked of every message with headers of the protocol, also where nothing is validated.
    if VALIDATE_KEY in view.config.metadata:
        view.feature(Validation).check(view, message)


class Validation(Feature):
    """The validation of one stream, and the schemas that its messages have.

    Args:
        definitions: the schemas of its account.
    """

    rules = (PublishRule(_check, single=140, replicated=140),)

    def __init__(self, definitions: Definitions, store: Store, pipeline: Pipeline) -> None:
        self._definitions, self._store, self._pipeline = definitions, store, pipeline
        self._mode = OFF
        self._text = ""
        self._rules = Naming(())
        self._empty_deletes = False
        self._latest: dict[str, int] = {}
        """Latest versions that the log states."""
        self._stated: dict[str, int] = {}
        """The same with statements in flight; what this leader checks by."""
        self._seen = -1
        """Changes of the definitions at the last statement about the rules."""

    def configure(self, config: StreamConfig) -> None:
        mode, text = config.metadata.get(VALIDATE_KEY, OFF), config.metadata.get(SCHEMA_KEY, "")
        if (mode, text) != (self._mode, self._text):
            self._mode, self._text, self._latest = mode, text, {}
        try:
            self._rules = naming.parse(self._text or naming.BY_HEADER)
        except BadSchema:  # of a backup, or of an older version: no message has a schema by its rules
            self._rules = Naming(())
        self._empty_deletes = empty_deletes(config.metadata)
        if self._mode != OFF:
            self._definitions.need()
        self._forget()
        self._store.note_schemas(self._text, self._latest)

    # ------------------------------------------------------------------ statements of the latest versions
    def active(self, hook: str) -> bool:
        return hook != "rewound" or self._mode != OFF

    def _forget(self) -> None:
        """Forget statements that are in flight."""
        self._stated, self._seen = dict(self._latest), -1

    def _state(self, header: bytes = b"") -> None:
        """Log the latest versions that a message is checked by, unless the log has them."""
        definitions, names = self._definitions, list[str]()
        if self._seen != definitions.changes:
            self._seen = definitions.changes
            names = [each.name for each in self._rules.references() if each.version is None]
        if header and (given := headers.get(header, naming.HEADER)) is not None:
            reference = naming.given(given)
            if reference is not None and reference.version is None and len(self._stated) < MAX_STATED:
                names.append(reference.name)
        known = {name: definitions.latest(name) for name in names}
        new = {name: version for name, version in known.items() if version and self._stated.get(name) != version}
        if not new or not self._pipeline.accepts:
            return
        self._stated |= new
        self._pipeline.log_progress([ConsumerProgress(STATED, msgspec.msgpack.encode(new))], lambda: self._learn(new))

    def _learn(self, versions: dict[str, int]) -> None:
        if self._mode != OFF:
            self._latest = self._latest | versions
            self._store.note_schemas(self._text, self._latest)

    def progressed(self, entries: Sequence[ConsumerProgress]) -> None:
        for entry in entries:
            if entry.name == STATED:
                self._learn(_versions.decode(entry.state))

    def applied(self, operation: Operation, own: bool) -> None:
        if not isinstance(operation, CreateStream) or own or operation.config == self._store.config:
            return
        # What was configured until now is of a later entry.
        self.configure(offline.stream_config(operation.config))

    def rewound(self, last_seq: int) -> None:
        self._forget()

    def dump(self) -> Mapping[str, object]:
        return {"schema_versions": self._latest} if self._latest else {}

    def load(self, checkpoint: bytes) -> None:
        self._latest = _CHECKPOINT.decode(checkpoint).schema_versions
        self._forget()
        self._store.note_schemas(self._text, self._latest)

    # ------------------------------------------------------------------ checks
    def judges_every_message(self) -> bool:
        return self._mode != OFF

    def passes_run(self, view: View, run: Publishes, begin: int, end: int) -> int:
        if self._mode == OFF:
            return end
        rules, misfit, places, buf = self._rules, self._definitions.misfit, run.places, run.buf
        subjects = run.subjects
        self._state()
        try:
            for at in range(begin, end):
                if any(name in run.header(at) for name in (_HEADER, TAG, *_MARKERS)):
                    return at
                payload = places[at * WIDTH + 2]
                if self._empty_deletes and not places[at * WIDTH + 3]:
                    continue
                if misfit(rules, subjects[at], b"", buf[payload : payload + places[at * WIDTH + 3]]) is not None:
                    return at
        except NotReady:
            return begin
        return end

    def _is_marker(self, message: IncomingMessage) -> bool:
        return not message.payload and (self._empty_deletes or any(name in message.header for name in _MARKERS))

    def check(self, view: View, message: IncomingMessage) -> None:
        """Refuse a publish that does not fit, or tag it. Raise ApiError, NotReady."""
        if self._mode == OFF or message.client is None or self._is_marker(message):
            return
        self._state(message.header if _HEADER in message.header else b"")
        misfit = self._definitions.misfit(self._rules, message.subject, message.header, message.payload)
        if self._mode == WITH_TAG:
            _tag(view, message, misfit)
        elif misfit is not None:
            raise api_error(20006, misfit=f"{misfit.field or 'payload'}: {misfit.rule}: {misfit.text}")


def _tag(view: View, message: IncomingMessage, misfit: Misfit | None) -> None:
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
    return headers.plain(field).encode()[: MAX_TAG - len(rule) - 2] + b": " + rule
