"""Schemas as the registry stores them.

Belongs here: the document of one version, its limits, and references like `orders@3`. A document that parses is not yet
a schema that can be used: `codec.codec_of` reads its text.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.schemas.errors import BadSchema

MAX_NAME = 128
"""Maximum length of a schema's name."""
MAX_TEXT = 256 << 10
"""Maximum size of a schema's text, in bytes of UTF-8."""
MAX_DOCUMENT = 4 << 20
"""Maximum size of a document, in bytes: a text, and the descriptor set of a `.proto` text."""
MAX_VERSIONS = 64
"""Maximum number of versions of a schema, as KV buckets keep no more of a key."""
MAX_ID = 2**32 - 1
LATEST = "latest"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
Format = Literal["json", "avro", "protobuf"]
Compatibility = Literal[
    "none", "backward", "forward", "full", "backward_transitive", "forward_transitive", "full_transitive"
]


class Schema(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of a schema.

    Attributes: `text`: JSON Schema or Avro schema as JSON; Protobuf: a `.proto` text, or a FileDescriptorSet in base64;
    `message`: Protobuf: full name of the message, "" for the first one; `descriptors`: the compiled `.proto` text;
    `id`: number of this schema in the account, for Confluent's wire format; equal schemas share it; 0: none yet;
    `source`: JSON with the definition that a client of the registry's REST API gave, where `text` differs from it.
    """

    name: str
    version: int
    format: Format
    text: str
    message: str = ""
    descriptors: str = ""
    compatibility: Compatibility = "backward"
    id: int = 0
    created_ns: int = 0
    source: str = ""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Return what equal schemas, under any name, have in common: they share one id."""
        return self.format, self.text, self.message, self.source

    @property
    def reference(self) -> str:
        """Return `name@version`, as the column `schema` has it."""
        return f"{self.name}@{self.version}"

    def document(self) -> bytes:
        """Return the JSON document of the registry."""
        return msgspec.json.encode(self)


class Reference(msgspec.Struct, frozen=True):
    """A schema by name. `version`: None for the latest."""

    name: str
    version: int | None = None

    def __str__(self) -> str:
        return f"{self.name}@{LATEST if self.version is None else self.version}"


_DOCUMENT = JsonDecoder(Schema)


def parse_document(raw: bytes) -> Schema:
    """Return the schema of a document.

    Raises:
        BadSchema: it is none, or exceeds a limit.
    """
    if len(raw) > MAX_DOCUMENT:
        raise BadSchema(f"the document has more than {MAX_DOCUMENT} bytes")
    try:
        found = _DOCUMENT.decode(raw)
    except DECODE_ERRORS as error:
        raise BadSchema(f"it is not a schema document: {error}") from None
    check(found)
    return found


def check(schema: Schema) -> None:
    """Check the limits of a schema that need no look into its text.

    Raises:
        BadSchema: one is exceeded.
    """
    check_name(schema.name)
    if not 1 <= schema.version <= MAX_VERSIONS:
        raise BadSchema(
            f"version {schema.version}", "version", f"it is 1 to {MAX_VERSIONS}; delete the schema, or begin a new one"
        )
    if len(schema.text.encode(errors="surrogatepass")) > MAX_TEXT:
        raise BadSchema(f"the text has more than {MAX_TEXT} bytes", "text", "leave out descriptions, or split it")
    if not 0 <= schema.id <= MAX_ID:
        raise BadSchema(f"id {schema.id} has more than 32 bits", "id")
    if schema.format != "protobuf" and (schema.message or schema.descriptors):
        raise BadSchema("only Protobuf has messages and descriptors", "message")


def check_name(name: str) -> None:
    """Check the name of a schema: the tokens of a subject, of letters, digits, `_` and `-`.

    Raises:
        BadSchema: it is none.
    """
    if len(name) > MAX_NAME or _NAME.fullmatch(name) is None:
        raise BadSchema(
            f"{name[:40]!r} is not a valid schema name",
            "name",
            f"use up to {MAX_NAME} letters, digits, '_', '-' and '.'",
        )


def parse_reference(text: str) -> Reference:
    """Return the reference `name`, `name@latest` or `name@3`.

    Raises:
        BadSchema: it is none of these.
    """
    name, at, version = text.partition("@")
    check_name(name)
    if not at or version == LATEST:
        return Reference(name)
    if version.isascii() and version.isdecimal() and len(version) < 4 and 1 <= int(version) <= MAX_VERSIONS:
        return Reference(name, int(version))
    raise BadSchema(f"{text[:80]!r} names no version", remedy=f"write {name}@latest, or {name}@1 to @{MAX_VERSIONS}")
