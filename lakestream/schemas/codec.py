"""Formats of schemas behind one interface.

Belongs here: the interface, the choice of a format, which is a package of its own (packages/schemas), and whole rows
including their prefixes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lakestream import extras
from lakestream.schemas import framing
from lakestream.schemas.differences import Differences
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.payloads import Codec
from lakestream.schemas.schema import Schema, check

if TYPE_CHECKING:
    import pyarrow as pa


class SchemaFormat(Protocol):
    """A format of schemas. Every method raises BadSchema for a text that is no such schema, or exceeds a limit."""

    def codec(self, schema: Schema) -> Codec:
        """Return the codec of a schema."""

    def check(self, schema: Schema) -> None:
        """Check that a text is a schema of its format, which may not have columns: an Avro `string`, say."""

    def compare(self, writer: Schema, reader: Schema, found: Differences, strict: bool) -> None:
        """Find the differences of a reader's schema from that of what was written."""

    def compiled(self, schema: Schema) -> Schema:
        """Return a schema as it is stored: of a `.proto` text with its descriptors."""

    def at_path(self, schema: Schema, path: tuple[int, ...]) -> Schema:
        """Return the schema of the message that payloads name by its path in the file; `schema` itself if that is its
        message."""

    def fingerprint(self, schema: Schema) -> bytes:
        """Return the bytes by which payloads of Avro's single-object encoding name a schema; b"" in other formats."""


def format_of(schema: Schema) -> SchemaFormat:
    """Return the format of a schema. Raise BadSchema if its package is not installed."""
    purpose = f"the format {schema.format}"
    try:
        extras.require("schemas", purpose)
        found: SchemaFormat = extras.load("lakestream.schemas", schema.format, "schemas", purpose)
    except extras.ExtraMissing as error:
        raise BadSchema(str(error), "format") from error
    return found


def codec_of(schema: Schema) -> Codec:
    """Return the codec of a schema.

    Raises:
        BadSchema: the text is no such schema, or exceeds a limit.
    """
    check(schema)
    return format_of(schema).codec(schema)


def prepared(schema: Schema) -> Schema:
    """Return a schema ready to be stored: a `.proto` text is compiled, and the text is read once.

    Raises:
        BadSchema: it cannot be used.
    """
    check(schema)
    schema = format_of(schema).compiled(schema)
    codec_of(schema)
    return schema


def is_proto(text: str) -> bool:
    """Return True if the text of a Protobuf schema is a `.proto` file, not a descriptor set in base64."""
    return any(char in text for char in ";{")


def encode_rows(codec: Codec, columns: pa.RecordBatch, formats: pa.Array) -> pa.BinaryArray:
    """Return the payloads of rows with their prefixes, NULL where `data_format` is NULL.

    Raises:
        ValueError: a text is no format of this schema.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(formats.type):
        formats = formats.dictionary_encode()
    split = [framing.split_format(text) for text in formats.dictionary.to_pylist()]
    bare = pa.DictionaryArray.from_arrays(formats.indices, pa.array([rest for _, rest in split], pa.string()))
    found = codec.encode(columns, bare)
    if not any(prefix for prefix, _ in split):
        return found
    prefixes = pa.array([prefix for prefix, _ in split], pa.binary()).take(formats.indices)
    return pc.binary_join_element_wise(prefixes, found, b"")
