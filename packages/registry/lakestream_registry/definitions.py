"""Definitions of schemas, as clients of the registry post them.

Belongs here: the body of a registration, the schema that it becomes, and the fields of answers that give it back.

A definition may refer to others. The schema's text has them inside then, so that the rest of lakestream reads one text;
`Schema.source` keeps the definition as it was posted.

Source: Confluent's documentation, "Schema Registry API Reference", "Schemas", "Subjects".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.schemas.codec import format_of
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import Format, Schema, check
from lakestream_registry import protobuf, references
from lakestream_registry.errors import RegistryError, bad_schema
from lakestream_schemas.formats import prepared

FORMATS: dict[str, Format] = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
"""Formats by their names in the API."""
_KINDS = {form: kind for kind, form in FORMATS.items()}
MAX_REFERENCES = 100
"""Maximum number of references of a definition."""


class SchemaLink(msgspec.Struct, frozen=True):
    """A reference: the name by which a definition uses a version of another subject."""

    name: str
    subject: str
    version: int


class PostedSchema(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The body of a registration. `id`, `version`: of a schema that is brought from another registry."""

    schema: str | None = None
    schema_type: str | None = None
    references: list[SchemaLink] | None = None
    metadata: Any = None
    rule_set: Any = None
    id: int | None = None
    version: int | None = None


_POSTED = JsonDecoder(PostedSchema)


def posted_of(body: bytes) -> PostedSchema:
    """Return the body of a request. Raises RegistryError 42201 or 400."""
    try:
        found = _POSTED.decode(body)
    except DECODE_ERRORS as error:
        raise RegistryError(400, f"the body is not a definition: {error}") from None
    if not found.schema:
        raise bad_schema("the schema is empty")
    return found


def schema_of(name: str, posted: PostedSchema, find: Callable[[SchemaLink], Schema]) -> Schema:
    """Return a definition as a schema, without version and id. It may take up to seconds.

    Args:
        name: the schema's.
        posted: the definition.
        find: returns the version that a reference names.

    Raises:
        RegistryError: 42201, it is no schema, or exceeds a limit.
    """
    form = FORMATS.get(posted.schema_type or "AVRO")
    if form is None:
        raise bad_schema(f"the type {posted.schema_type} is not one of {', '.join(FORMATS)}")
    links = posted.references or []
    if len(links) > MAX_REFERENCES:
        raise bad_schema(f"it has more than {MAX_REFERENCES} references")
    others = {link.name: find(link) for link in links}
    text = posted.schema or ""
    if form != "protobuf":
        text = references.compact(references.parsed(text))
    source = _source(text, posted)
    try:
        if form == "protobuf":
            inner = {link: each.descriptors or each.text for link, each in others.items()}
            schema = Schema(name, 1, form, text, descriptors=protobuf.compiled(text, inner), source=source)
        else:
            bundle = references.of_avro if form == "avro" else references.of_json
            if others:
                text = bundle(text, {link: each.text for link, each in others.items()})
            schema = Schema(name, 1, form, text, source=source)
        return _ready(schema)
    except BadSchema as error:
        raise bad_schema(str(error)) from None


def _ready(schema: Schema) -> Schema:
    """Return a schema ready to be stored. Raises BadSchema unless it is one, with columns or without."""
    try:
        return prepared(schema)
    except BadSchema:
        check(schema)
        format_of(schema).check(schema)
        return schema


def _source(text: str, posted: PostedSchema) -> str:
    """Return the definition as it is kept beside a text; "" if the text says all of it."""
    kept: dict[str, Any] = {}
    if posted.references:
        kept |= {"schema": text, "references": msgspec.to_builtins(posted.references)}
    if posted.metadata:
        kept["metadata"] = posted.metadata
    if posted.rule_set:
        kept["ruleSet"] = posted.rule_set
    return references.compact(kept) if kept else ""


def kept_of(schema: Schema) -> dict[str, Any]:
    """Return the fields of a definition that its text does not say: references, metadata, rules."""
    try:
        found = msgspec.json.decode(schema.source) if schema.source else {}
    except DECODE_ERRORS:
        return {}  # a client wrote it to the bucket itself
    return found if isinstance(found, dict) else {}


def links_of(schema: Schema) -> list[SchemaLink]:
    """Return the references of a schema."""
    try:
        return msgspec.convert(kept_of(schema).get("references") or [], list[SchemaLink])
    except msgspec.ValidationError:
        return []


def shown(schema: Schema, form: str = "") -> dict[str, Any]:
    """Return the fields of an answer that define a schema.

    Args:
        schema: the schema.
        form: `serialized`: Protobuf as one file in base64; `resolved`: with its references inside.
    """
    kept = kept_of(schema)
    text = schema.text if form == "resolved" else kept.get("schema", schema.text)
    if form == "serialized" and schema.format == "protobuf":
        text = protobuf.serialized(schema.descriptors or schema.text)
    found: dict[str, Any] = {} if schema.format == "avro" else {"schemaType": _KINDS[schema.format]}
    found |= {key: kept[key] for key in ("references", "metadata", "ruleSet") if kept.get(key)}
    return found | {"schema": text}


def is_equal(one: Schema, other: Schema, normalized: bool) -> bool:
    """Return True if two definitions are the same one; `normalized`: in any order of names and references.

    Those of Avro are in any case: Java's clients write the names in Avro's order, and others as their authors did.
    """
    if one.format != other.format:
        return False
    if one.identity == other.identity or (one.format == "avro" and _of_avro(one) == _of_avro(other)):
        return True
    return normalized and _normal(one) == _normal(other)


def _of_avro(schema: Schema) -> dict[str, Any]:
    """Return a definition in Avro as values, which compare in any order of their names."""
    kept = kept_of(schema)
    return {**kept, "schema": references.plain_avro(references.parsed(str(kept.get("schema", schema.text))))}


def _normal(schema: Schema) -> tuple[str, Mapping[str, Any]]:
    kept = dict(kept_of(schema))
    text = str(kept.pop("schema", schema.text))
    links = sorted(links_of(schema), key=lambda link: (link.name, link.subject, link.version))
    if schema.format == "protobuf":
        text = protobuf.serialized(schema.descriptors or schema.text)
    else:
        text = _sorted(references.parsed(text))
    return text, {**kept, "references": msgspec.to_builtins(links)}


def _sorted(value: Any) -> str:
    import json

    return json.dumps(value, separators=(",", ":"), sort_keys=True)
