"""Codecs of all formats behind one interface.

Belongs here: what a codec does, the choice of one by format, and whole rows including their prefixes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakestream.schemas import framing
from lakestream.schemas.payloads import Codec
from lakestream.schemas.schema import Schema, check

if TYPE_CHECKING:
    import pyarrow as pa


def codec_of(schema: Schema) -> Codec:
    """Return the codec of a schema; its library is imported with the first one.

    Raises:
        BadSchema: the text is no such schema, or exceeds a limit.
    """
    check(schema)
    if schema.format == "json":
        from lakestream.schemas.json_schema.codec import JsonCodec

        return JsonCodec(schema.text)
    if schema.format == "avro":
        from lakestream.schemas.avro.codec import AvroCodec

        return AvroCodec(schema.text)
    from lakestream.schemas.protobuf.codec import ProtobufCodec

    return ProtobufCodec(schema.descriptors or schema.text, schema.message)


def prepared(schema: Schema) -> Schema:
    """Return a schema ready to be stored: a `.proto` text is compiled, and the text is read once.

    Raises:
        BadSchema: it cannot be used.
    """
    check(schema)
    if schema.format == "protobuf" and not schema.descriptors and is_proto(schema.text):
        from lakestream.schemas.protobuf.protoc import compile_proto

        schema = msgspec.structs.replace(schema, descriptors=compile_proto(schema.text))
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
