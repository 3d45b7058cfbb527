"""The formats behind lakestream's interface.

Belongs here: one class for each format, as `SchemaFormat` of lakestream/schemas/codec.py describes it. The library of a
format is imported with its first schema.
"""

from __future__ import annotations

import threading

import msgspec

from lakestream.schemas.codec import Codec, codec_of, format_of
from lakestream.schemas.schema import Schema, check
from lakestream_schemas.differences import Differences

_IMPORTS = threading.Lock()
"""Held while a format is imported: schemas are compiled in several threads, and two of these cannot import fastavro at
once, whose modules import each other."""


class JsonFormat:
    """JSON Schema."""

    @staticmethod
    def codec(schema: Schema) -> Codec:
        with _IMPORTS:
            from lakestream_schemas.json_schema.codec import JsonCodec

        return JsonCodec(schema.text)

    @staticmethod
    def check(schema: Schema) -> None:
        with _IMPORTS:
            from lakestream_schemas.json_schema.codec import check_schema

        check_schema(schema.text)

    @staticmethod
    def compare(writer: Schema, reader: Schema, found: Differences, strict: bool) -> None:
        with _IMPORTS:
            from lakestream_schemas.json_schema import compatibility

        compatibility.compare(writer.text, reader.text, found, strict)

    @staticmethod
    def compiled(schema: Schema) -> Schema:
        return schema

    @staticmethod
    def at_path(schema: Schema, path: tuple[int, ...]) -> Schema:
        return schema

    @staticmethod
    def fingerprint(schema: Schema) -> bytes:
        return b""


class AvroFormat(JsonFormat):
    """Avro."""

    @staticmethod
    def codec(schema: Schema) -> Codec:
        with _IMPORTS:
            from lakestream_schemas.avro.codec import AvroCodec

        return AvroCodec(schema.text)

    @staticmethod
    def check(schema: Schema) -> None:
        with _IMPORTS:
            from lakestream_schemas.avro.model import parse

        parse(schema.text, any_root=True)

    @staticmethod
    def compare(writer: Schema, reader: Schema, found: Differences, strict: bool) -> None:
        with _IMPORTS:
            from lakestream_schemas.avro import compatibility

        compatibility.compare(writer.text, reader.text, found)

    @staticmethod
    def fingerprint(schema: Schema) -> bytes:
        with _IMPORTS:
            from lakestream_schemas.avro.fingerprint import fingerprint

        return fingerprint(schema.text)


class ProtobufFormat(JsonFormat):
    """Protobuf."""

    @staticmethod
    def codec(schema: Schema) -> Codec:
        with _IMPORTS:
            from lakestream_schemas.protobuf.codec import ProtobufCodec

        return ProtobufCodec(schema.descriptors or schema.text, schema.message)

    @staticmethod
    def check(schema: Schema) -> None:
        with _IMPORTS:
            from lakestream_schemas.protobuf.model import message_of, read_files

        files = read_files(schema.descriptors or schema.text)
        if files.file[-1].message_type:  # a file that others import may have none
            message_of(files, schema.message)

    @staticmethod
    def compare(writer: Schema, reader: Schema, found: Differences, strict: bool) -> None:
        with _IMPORTS:
            from lakestream_schemas.protobuf import compatibility

        of_writer, of_reader = ((each.descriptors or each.text, each.message) for each in (writer, reader))
        compatibility.compare(of_writer, of_reader, found)

    @staticmethod
    def compiled(schema: Schema) -> Schema:
        with _IMPORTS:
            from lakestream_schemas.protobuf.protoc import compile_proto

        if schema.descriptors or not is_proto(schema.text):
            return schema
        return msgspec.structs.replace(schema, descriptors=compile_proto(schema.text))

    @staticmethod
    def at_path(schema: Schema, path: tuple[int, ...]) -> Schema:
        with _IMPORTS:
            from lakestream_schemas.protobuf.model import message_of, name_at, read_files

        files = read_files(schema.descriptors or schema.text)
        name = name_at(files, path)
        if name == message_of(files, schema.message).full_name:
            return schema
        return msgspec.structs.replace(schema, message=name)


FORMATS = {"avro": AvroFormat, "json": JsonFormat, "protobuf": ProtobufFormat}


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
