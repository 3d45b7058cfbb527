"""Names of schemas in streams and messages.

Belongs here: the grammar of `lakestream.schema`, and which schema a message has. The value is a rule for all messages
of a stream, or a JSON object of rules by subject, of which the first that matches counts:

    orders@latest   orders@3   orders      this version of this schema
    @confluent                             the id in Confluent's wire format
    @single-object                         the fingerprint in Avro's single-object encoding
    @header                                none but the header's
    {"orders.eu.>": "orders@3", ">": "@header"}

The header `Nats-Schema: orders@3` of a message counts before the rule. A prefix is only looked for where the rule asks
for it: payloads without one may begin with the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from lakestream.protocol import headers, subjects
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.schemas import framing
from lakestream.schemas.errors import BadSchema, Unfit
from lakestream.schemas.framing import Prefix
from lakestream.schemas.schema import Reference, parse_reference

SCHEMA_KEY, VALIDATE_KEY = "lakestream.schema", "lakestream.validate"
"""Metadata of a stream: the rules, and the check of its publishes by them."""
MISFITS_SUBJECT_KEY = "lakestream.misfits.subject"
"""Metadata of a stream: the subject to which its misfits are sent (stream/consumer/dead_letters.py)."""
OFF, REJECT, WITH_TAG = "off", "reject", "tag"
VALIDATIONS = (OFF, REJECT, WITH_TAG)
"""Values of `VALIDATE_KEY`; OFF is the default."""
HEADER = b"Nats-Schema"
TABLE_KEY, CDC_KEY = "lakestream.table", "lakestream.cdc"
"""Metadata of a stream: its upsert table, and the envelope of the changes of rows in its payloads."""
DELETIONS = (b"KV-Operation", b"Nats-Marker-Reason")
"""Headers of messages without a payload that stand for a deletion: they have no schema."""
UNKNOWN = "schema"
"""Rule of the misfits whose schema cannot be found or used."""
MAX_RULES = 100
"""Maximum number of subject patterns."""
BY_CONFLUENT, BY_SINGLE_OBJECT, BY_HEADER = "@confluent", "@single-object", "@header"
_BY = (BY_CONFLUENT, BY_SINGLE_OBJECT, BY_HEADER)
_RULES = JsonDecoder(dict[str, str])
Rule = Reference | str


class NamedSchema(msgspec.Struct, frozen=True):
    """The schema that a message names. `reference`: by name; else by the `prefix`, an id or a fingerprint."""

    reference: Reference | None = None
    prefix: Prefix | None = None


class Naming(msgspec.Struct, frozen=True):
    """Rules of one stream: (subject pattern, rule), in order."""

    rules: tuple[tuple[bytes, Rule], ...]

    def named(self, subject: bytes, header_block: bytes, payload: bytes) -> NamedSchema:
        """Return the schema that a message names.

        Raises:
            Unfit: the header or the prefix that has to name it does not.
        """
        given = headers.get(header_block, HEADER) if header_block else None
        rule = self.rule(subject)
        if given is not None:
            return NamedSchema(_given(given), _prefix(rule, payload, required=False))
        if isinstance(rule, Reference):
            return NamedSchema(rule)
        if rule is None or rule == BY_HEADER:
            return NamedSchema()
        return NamedSchema(None, _prefix(rule, payload, required=True))

    def rule(self, subject: bytes) -> Rule | None:
        """Return the first rule whose pattern matches."""
        for pattern, rule in self.rules:
            if pattern == b">" or subjects.matches(pattern, subject):
                return rule
        return None

    def references(self) -> tuple[Reference, ...]:
        """Return the schemas that the rules name."""
        return tuple(dict.fromkeys(rule for _, rule in self.rules if isinstance(rule, Reference)))


def empty_deletes(metadata: Mapping[str, str]) -> bool:
    """Return True if a message without a payload has no schema, whatever its headers: it deletes the row of its subject
    in the upsert table, or it is the tombstone of a change feed."""
    return metadata.get(TABLE_KEY, "").strip() == "latest" or metadata.get(CDC_KEY, OFF) != OFF


def parse(text: str) -> Naming:
    """Return the rules of a stream's `lakestream.schema`.

    Raises:
        BadSchema: it is no rule, and no object of rules.
    """
    text = text.strip()
    if not text.startswith("{"):
        return Naming(((b">", _rule(text)),))
    try:
        rules = _RULES.decode(text)
    except DECODE_ERRORS as error:
        raise BadSchema(
            f"it is no JSON object of texts: {error}", remedy='like {"orders.>": "orders@latest"}'
        ) from None
    if not 1 <= len(rules) <= MAX_RULES:
        raise BadSchema(f"{len(rules)} patterns", remedy=f"1 to {MAX_RULES} are possible")
    for pattern in rules:
        if not subjects.valid_subject(pattern.encode(errors="surrogatepass")):
            raise BadSchema(f"{pattern[:80]!r} is not a subject", remedy="like orders.eu.>")
    return Naming(tuple((pattern.encode(), _rule(rule)) for pattern, rule in rules.items()))


def _rule(text: str) -> Rule:
    if text.startswith("@"):
        if text not in _BY:
            raise BadSchema(f"{text[:40]!r}", remedy=f"use one of {', '.join(_BY)}, or name@version")
        return text
    return parse_reference(text)


def given(value: bytes) -> Reference | None:
    """Return the reference of a header's value; None if it is none."""
    try:
        return _given(value)
    except Unfit:
        return None


@lru_cache(maxsize=1024)
def _given(value: bytes) -> Reference:
    """Return the reference of a header."""
    try:
        return parse_reference(value.decode("latin-1").strip())
    except BadSchema as error:
        raise Unfit("", "header", f"Nats-Schema: {error}") from None


def _prefix(rule: Rule | None, payload: bytes, required: bool) -> Prefix | None:
    """Return the prefix that a rule asks for; None for no such rule."""
    if rule not in (BY_CONFLUENT, BY_SINGLE_OBJECT):
        return None
    try:
        return framing.confluent(payload) if rule == BY_CONFLUENT else framing.single_object(payload)
    except Unfit:
        if required:
            raise
        return None
