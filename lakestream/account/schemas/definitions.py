"""Checks of publishes against the schemas of an account.

Belongs here: which version a message has, and the codecs of versions in use. Codecs are made in a thread, as a schema
may take long to read; messages that need one wait for it (`NotReady`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lakestream.account.schemas.bucket import RegisteredSchemas
from lakestream.account.schemas.calls import CallUnanswered, list_nothing
from lakestream.account.schemas.follower import Follower
from lakestream.logging import Logger
from lakestream.ports import Bus, Clock, Io
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.schemas import framing, naming
from lakestream.schemas.codec import codec_of, format_of
from lakestream.schemas.errors import BadSchema, Misfit, Unfit
from lakestream.schemas.framing import Prefix
from lakestream.schemas.naming import UNKNOWN, Naming
from lakestream.schemas.schema import Reference, Schema
from lakestream.stream.core.publish import NotReady

MAX_CODECS = 256
"""Maximum number of codecs of an account; the one that was made first goes for another."""
MAX_WAIT_NS = 5_000_000_000
"""Maximum time for which messages wait for schemas (5 s); then they are refused (20005)."""
_HEADER = b"\r\n" + naming.HEADER + b":"
Fits = Callable[[bytes], Misfit | None]


class _Key(msgspec.Struct, frozen=True):
    """A codec. `path`: of the message in Confluent's wire format, () for the registered one."""

    name: str
    version: int
    id: int
    path: tuple[int, ...] = ()


class AccountDefinitions:
    """Implementation of `Definitions` for one account.

    Args:
        reader: name of this node.
        uid: returns the identity of the bucket's stream, "" if there is none.
    """

    def __init__(
        self, account: str, reader: str, bus: Bus, clock: Clock, io: Io, uid: Callable[[], str], log: Logger
    ) -> None:
        self._bus, self._clock, self._io = bus, clock, io.lane(background=True)
        self._state = RegisteredSchemas()  # the registry logs what is ignored
        self._follower = Follower(account, reader, bus, clock, uid, self._state, self._changed)
        self._begun = False
        self._codecs: dict[_Key, Fits] = {}
        self._making: set[_Key] = set()
        self._fingerprints: dict[bytes, Schema] = {}
        self._fingerprinted: set[int] = set()
        """Ids of the Avro schemas in `_fingerprints`."""
        self._waiting: dict[Callable[[ApiError | None], None], int] = {}
        """Callbacks, with the time by which they are called."""
        self._straight: dict[Reference, Fits] = {}
        """Checks of rules without a prefix, until the schemas change."""
        self._comparing = self._certain = False
        """True while the registry is asked for its revision; and while it is known that this copy has all of it."""
        self._behind: int | None = None
        """Revision of the registry that messages with unknown schemas wait for."""
        self._log = log
        self.changes = 0
        self.on_use: Callable[[Schema], None] = lambda schema: None
        """Called with each version that messages are checked by, before the first one is."""

    def need(self) -> None:
        if not self._begun:
            self._begun = True
            self._clock.call_soon(self._follower.begin)  # the assignments are not known yet at a start

    def stop(self) -> None:
        """Follow the schemas no more."""
        self._follower.stop()

    # ------------------------------------------------------------------ checks
    def latest(self, name: str) -> int:
        found = self._state.find(name) if self._follower.is_current else None
        return 0 if found is None else found.version

    def misfit(self, rules: Naming, subject: bytes, header: bytes, payload: bytes) -> Misfit | None:
        rule = rules.rules[0][1] if len(rules.rules) == 1 and rules.rules[0][0] == b">" else rules.rule(subject)
        if isinstance(rule, Reference) and not (header and _HEADER in header):
            fits = self._straight.get(rule)
            if fits is None:
                fits = self._fits_of(rule)
            return fits(payload)
        try:
            named = rules.named(subject, header, payload)
            if named.reference is None and named.prefix is None:
                return None
            return self._fits(named.reference, named.prefix, payload)
        except Unfit as unfit:
            return unfit.misfit

    def _fits_of(self, reference: Reference) -> Fits:
        """Return the check of payloads of a schema by name. Raise NotReady."""
        self._require()
        schema = self._state.find(reference.name, reference.version)
        if schema is None:
            misfit = self._unknown(str(reference))
            return lambda payload: misfit
        fits = self._straight[reference] = self._codec(schema)
        return fits

    def _fits(self, reference: Reference | None, prefix: Prefix | None, payload: bytes) -> Misfit | None:
        """Return the misfit of a payload that may have a prefix. Raise NotReady, Unfit."""
        self._require()
        if reference is not None:
            schema, shown = self._state.find(reference.name, reference.version), str(reference)
        else:
            assert prefix is not None, "a message names its schema in one way or the other"
            schema, shown = self._prefixed(prefix)
        if schema is None:
            return self._unknown(shown)
        if prefix is not None and schema.format == "protobuf" and not prefix.fingerprint:
            prefix = framing.split_path(prefix, payload)
        fits = self._codec(schema, prefix.path if prefix is not None else ())
        return fits(payload if prefix is None else payload[len(prefix.raw) :])

    def _prefixed(self, prefix: Prefix) -> tuple[Schema | None, str]:
        """Return (the schema that a prefix names, its text for people). Raise NotReady."""
        if not prefix.fingerprint:
            return self._state.by_id(prefix.id), f"id {prefix.id}"
        found = self._fingerprints.get(prefix.fingerprint)
        if found is None:
            self._index()
        return found, f"fingerprint {prefix.fingerprint.hex()}"

    # ------------------------------------------------------------------ unknown schemas
    def _unknown(self, shown: str) -> Misfit:
        """Return the misfit of an unknown schema. Raise NotReady until it is certain that this copy is not behind."""
        if not self._certain:
            if not self._comparing:
                self._comparing = True
                self._clock.spawn(self._compare())
            raise NotReady(self._wait)
        return Misfit("", UNKNOWN, f"{shown} is not registered")

    async def _compare(self) -> None:
        """Have what waits judged again once this copy has what the registry has now."""
        try:
            self._behind = (await list_nothing(self._bus, self._clock)).revision
        except CallUnanswered:
            self._behind = 0  # what is not known here is refused meanwhile
        self._comparing = False
        self._go_on_if_caught_up()

    def _go_on_if_caught_up(self) -> None:
        if self._behind is None or self._state.revision < self._behind:
            return
        self._behind = None
        self._certain = True
        try:
            self._call()
        finally:
            self._certain = False

    def _require(self) -> None:
        if not self._follower.is_current:
            raise NotReady(self._wait)

    # ------------------------------------------------------------------ codecs
    def _codec(self, schema: Schema, path: tuple[int, ...] = ()) -> Fits:
        """Return the check of payloads of a version. Raise NotReady: it is being made."""
        key = _Key(schema.name, schema.version, schema.id, path)
        found = self._codecs.get(key)
        if found is not None:
            return found
        if key not in self._making:
            self._make(key, schema)
        raise NotReady(self._wait)

    def _make(self, key: _Key, schema: Schema) -> None:
        self._making.add(key)
        self.on_use(schema)

        def made(fits: Fits | None, error: BaseException | None) -> None:
            self._making.discard(key)
            if fits is None:
                misfit = Misfit("", UNKNOWN, f"{schema.reference} cannot be used: {error}"[:300])
                fits = lambda payload: misfit  # noqa: E731
                if not isinstance(error, BadSchema):
                    self._log.error(f"schema {schema.reference} cannot be read: {error}")
            self._codecs[key] = fits
            if len(self._codecs) > MAX_CODECS:
                del self._codecs[next(iter(self._codecs))]
                self._straight.clear()
            self._go_on()

        self._io.submit(lambda: _made(schema, key.path), made)

    def _index(self) -> None:
        """Compute the fingerprints of Avro schemas that have none yet. Raise NotReady if there are such."""
        missing = [
            each for each in self._state.schemas() if each.format == "avro" and each.id not in self._fingerprinted
        ]
        if not missing:
            return
        self._fingerprinted.update(each.id for each in missing)

        def done(found: dict[bytes, Schema] | None, error: BaseException | None) -> None:
            self._fingerprints = (found or {}) | self._fingerprints
            self._go_on()

        self._io.submit(lambda: _fingerprinted(missing), done)
        raise NotReady(self._wait)

    # ------------------------------------------------------------------ waiting
    def _changed(self, schema: Schema | None) -> None:
        self.changes += 1
        self._straight.clear()
        if schema is not None and any(key.name == schema.name for key in self._codecs):
            key = _Key(schema.name, schema.version, schema.id)
            if key not in self._codecs and key not in self._making:
                self._make(key, schema)  # its stream's next message would wait for it
        self._go_on()
        self._go_on_if_caught_up()

    def _wait(self, then: Callable[[ApiError | None], None]) -> None:
        """Call `then` when something may be ready, or with an error when nothing was for too long."""
        self._waiting[then] = self._clock.steady() + MAX_WAIT_NS
        self._clock.call_later(MAX_WAIT_NS, lambda: self._late(then))

    def _late(self, then: Callable[[ApiError | None], None]) -> None:
        deadline = self._waiting.get(then)
        if deadline is not None and deadline <= self._clock.steady():  # else it waits for something else by now
            del self._waiting[then]
            then(api_error(20005, err="the schemas of the account cannot be read now"))

    def _go_on(self) -> None:
        if self._waiting:
            self._clock.call_soon(self._call)

    def _call(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for then in waiting:
            then(None)


def _made(schema: Schema, path: tuple[int, ...]) -> Fits:
    """Return the check of payloads of a version. Raise BadSchema."""
    if path:
        schema = format_of(schema).at_path(schema, path)
    return codec_of(schema).fits


def _fingerprinted(schemas: list[Schema]) -> dict[bytes, Schema]:
    found: dict[bytes, Schema] = {}
    for schema in schemas:
        try:
            found.setdefault(format_of(schema).fingerprint(schema), schema)
        except Exception:  # of the library, about a text that a client wrote to the bucket itself
            continue
    return found
