"""Schemas in the lake: the versions that tables refer to.

Belongs here: the files by which compactor and readers find schemas without a server, and nothing about their content.
The registry of the server is in charge; it writes each version here before messages may name it. A version never
changes, since rows of tables refer to it by name and number.

    schemas/<name>/<version>.json        the document of one version (schemas/schema.py)
    schemas/_ids/<id>.json               the reference of an id, for Confluent's wire format
    schemas/_fingerprints/<hex>.json     the reference of a fingerprint, for Avro's single-object encoding

Those of other accounts are below `accounts/<ACCOUNT>/`.
"""

from __future__ import annotations

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.storage import paths
from lakestream.lake.storage.storage import Storage
from lakestream.protocol.decoding import DECODE_ERRORS, JsonDecoder
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import Schema, check, parse_document

IDS, FINGERPRINTS = "_ids", "_fingerprints"
"""Directories of the indexes. No schema has such a name."""
SUFFIX = ".json"


class SchemaConflict(LakeError):
    """Raised when the lake has another schema under a name and version, or an id."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is another schema: versions never change, since rows of tables refer to them. Register the schema "
            "as a new version, or under a new name; a server with a new registry needs a lake of its own"
        )


class DamagedSchema(LakeError):
    """Raised when the file of a schema does not decode."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}; bring it back from a copy of the lake, or export it anew")


class _Place(msgspec.Struct, frozen=True):
    """Content of an index file: the schema that an id or fingerprint stands for."""

    name: str
    version: int


_PLACE = JsonDecoder(_Place)


def write_schema(storage: Storage, account: str, schema: Schema) -> bool:
    """Write a version into the lake; return False if it is there already. May be repeated after a crash.

    The document is written last, so that a version that can be read can also be found by its id and fingerprint.

    Args:
        storage: the lake.
        account: the account of the schema.
        schema: the version, as `prepared` of packages/schemas returns it.

    Raises:
        BadSchema: it exceeds a limit.
        SchemaConflict: the lake has another schema in its place. Nothing was changed.
    """
    check(schema)
    path = paths.schema(storage.root, schema.name, schema.version, account)
    there = read_schema(storage, account, schema.name, schema.version)
    if there is not None and not is_same(there, schema):
        raise SchemaConflict(path)
    place = _Place(schema.name, schema.version)
    if schema.id:
        path_of_id = _id_path(storage, account, schema.id)
        # Equal schemas share an id: the first one's place serves all.
        if not _create(storage, path_of_id, place) and _place(storage, path_of_id) != place:
            known = _found(storage, account, path_of_id)
            if known is None or known.identity != schema.identity:
                raise SchemaConflict(path_of_id)
    if schema.format == "avro":
        from lakestream.schemas.codec import format_of  # with the first schema

        # Several versions may have one fingerprint; they read the same payloads, so the first one serves all.
        _create(storage, _fingerprint_path(storage, account, format_of(schema).fingerprint(schema)), place)
    if there is not None:
        return False
    if storage.create(path, schema.document()):
        return True
    there = read_schema(storage, account, schema.name, schema.version)
    if there is None or not is_same(there, schema):
        raise SchemaConflict(path)
    return False


def is_same(one: Schema, other: Schema) -> bool:
    """Return True if two documents describe the same version: equal but for the compatibility mode, which may change
    later, and the time of registration."""
    return msgspec.structs.replace(one, compatibility=other.compatibility, created_ns=other.created_ns) == other


def read_schema(storage: Storage, account: str, name: str, version: int) -> Schema | None:
    """Return a version of a schema; None if the lake does not have it.

    Raises:
        DamagedSchema: its file does not decode, or is that of another version.
    """
    path = paths.schema(storage.root, name, version, account)
    try:
        raw = storage.read(path)
    except FileNotFoundError:
        return None
    try:
        found = parse_document(raw)
    except BadSchema as error:
        raise DamagedSchema(path, str(error)) from None
    if (found.name, found.version) != (name, version):
        raise DamagedSchema(path, f"it is the document of {found.reference}")
    return found


def versions(storage: Storage, account: str, name: str) -> list[int]:
    """Return the versions of a schema in the lake, ascending."""
    directory = paths.schema(storage.root, name, 0, account).rpartition("/")[0]
    stems = [found.removesuffix(SUFFIX) for found in storage.names(directory) if found.endswith(SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdecimal())


def schema_of_id(storage: Storage, account: str, number: int) -> Schema | None:
    """Return the schema of an id; None if the lake does not have it.

    Raises:
        DamagedSchema: a file does not decode.
    """
    return _found(storage, account, _id_path(storage, account, number))


def schema_of_fingerprint(storage: Storage, account: str, fingerprint: bytes) -> Schema | None:
    """Return the Avro schema of a fingerprint, given as in messages; None if the lake does not have it.

    Raises:
        DamagedSchema: a file does not decode.
    """
    return _found(storage, account, _fingerprint_path(storage, account, fingerprint))


def names(storage: Storage, account: str) -> list[str]:
    """Return the names of all schemas of an account in the lake, sorted."""
    found = storage.directories(paths.schemas(storage.root, account))
    return sorted(paths.name_of(name) for name in found if name not in (IDS, FINGERPRINTS))


def everything(storage: Storage, account: str) -> list[Schema]:
    """Return all versions of all schemas of an account that have an id, by it.

    Raises:
        DamagedSchema: a file does not decode.
    """
    found = (
        read_schema(storage, account, name, version)
        for name in names(storage, account)
        for version in versions(storage, account, name)
    )
    return sorted((schema for schema in found if schema is not None and schema.id), key=lambda schema: schema.id)


def _found(storage: Storage, account: str, path: str) -> Schema | None:
    place = _place(storage, path)
    return None if place is None else read_schema(storage, account, place.name, place.version)


def _place(storage: Storage, path: str) -> _Place | None:
    try:
        return _PLACE.decode(storage.read(path))
    except FileNotFoundError:
        return None
    except DECODE_ERRORS as error:
        raise DamagedSchema(path, str(error)) from None


def _create(storage: Storage, path: str, place: _Place) -> bool:
    return not storage.exists(path) and storage.create(path, msgspec.json.encode(place))


def _id_path(storage: Storage, account: str, number: int) -> str:
    return f"{paths.schemas(storage.root, account)}/{IDS}/{number}{SUFFIX}"


def _fingerprint_path(storage: Storage, account: str, fingerprint: bytes) -> str:
    return f"{paths.schemas(storage.root, account)}/{FINGERPRINTS}/{fingerprint.hex()}{SUFFIX}"
