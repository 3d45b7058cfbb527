"""Formats of schemas behind one interface.

Belongs here: the interface, the choice of a format, all of which are a package of their own (packages/schemas), and
whole rows including their prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from lakestream import extras
from lakestream.schemas import framing
from lakestream.schemas.columns import RecordType
from lakestream.schemas.errors import BadSchema, Misfit, RowMisfit
from lakestream.schemas.schema import Schema, check

if TYPE_CHECKING:
    import pyarrow as pa


class Decoded(msgspec.Struct, frozen=True):
    """A batch as columns. `columns`: one for each field of the root, all NULL in rows that do not fit; `misfits` names
    these rows, ascending."""

    columns: pa.RecordBatch
    misfits: list[RowMisfit]


class Codec(Protocol):
    """Checks, decodes and gives back payloads of one version of a schema, whose columns are `record`."""

    record: RecordType

    def fits(self, payload: bytes) -> Misfit | None:
        """Return the reason why a payload does not fit, None if it does."""

    def decode(self, payloads: Sequence[bytes | None] | pa.Array) -> Decoded:
        """Decode a batch to columns. NULL payloads are misfits."""

    def formats(self, columns: pa.RecordBatch, payloads: Sequence[bytes | None] | pa.Array) -> pa.DictionaryArray:
        """Return the `data_format` of each row, NULL where `encode` would not give its payload back exactly.

        Args:
            columns: the decoded batch.
            payloads: its payloads; NULL for rows that do not fit.
        """

    def encode(self, columns: pa.RecordBatch, formats: pa.Array) -> pa.BinaryArray:
        """Return the payloads of rows by their `data_format`, NULL where that is NULL.

        Raises:
            ValueError: a text is no format of this schema.
        """


class SchemaFormat(Protocol):
    """A format of schemas. Every method raises BadSchema for a text that is no such schema, or exceeds a limit."""

    def codec(self, schema: Schema) -> Codec:
        """Return the codec of a schema."""

    def check(self, schema: Schema) -> None:
        """Check that a text is a schema of its format, which may not have columns: an Avro `string`, say."""

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
