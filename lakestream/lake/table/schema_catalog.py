"""Schemas of one account as the lake has them, read once.

Belongs here: finding the schema version that a message names (schemas/naming.py), with its codec. `orders@latest` is
the latest version that was registered when the message was stored, so a later version does not change the meaning of
older messages; messages from before the first version have the first one.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache

import msgspec

from lakestream.lake.storage.storage import Storage
from lakestream.lake.table import schema_files as schemas
from lakestream.lake.table.schema_files import DamagedSchema
from lakestream.schemas import framing
from lakestream.schemas.codec import Codec, codec_of, format_of
from lakestream.schemas.errors import BadSchema, Unfit
from lakestream.schemas.framing import Prefix
from lakestream.schemas.naming import UNKNOWN, NamedSchema
from lakestream.schemas.schema import Reference, Schema

CODECS = 128
"""Maximum number of codecs that a process keeps."""


class Version(msgspec.Struct, frozen=True):
    """A schema version that can be used. `message`: name of another message of it than the registered one; payloads are
    not made from columns then."""

    schema: Schema
    codec: Codec
    message: str = ""

    @property
    def reference(self) -> str:
        """Return `name@version`."""
        return self.schema.reference


@lru_cache(CODECS)
def _codec(schema: Schema) -> Codec:
    return codec_of(schema)


class SchemaCatalog:
    """The schemas of an account. Not for use by two threads at once.

    Errors of the storage are raised; a schema that is missing or cannot be used makes its messages unfit.
    """

    def __init__(self, storage: Storage, account: str) -> None:
        self._storage, self._account = storage, account
        self._versions: dict[str, list[tuple[int, int]]] = {}
        self._found: dict[tuple[str, int], Version] = {}
        self._ids: dict[int, Schema] = {}
        self._fingerprints: dict[bytes, Schema] = {}
        self._unfit: dict[tuple[str, int | bytes], Unfit] = {}
        self._paths: dict[tuple[Schema, tuple[int, ...]], Version] = {}

    def version(self, name: str, number: int) -> Version:
        """Return a version by its name and number.

        Raises:
            Unfit: the lake does not have it, or it cannot be used.
        """
        known = self._found.get((name, number))
        if known is not None:
            return known
        if (unfit := self._unfit.get((name, number))) is not None:
            raise unfit
        try:
            schema = schemas.read_schema(self._storage, self._account, name, number)
            if schema is None:
                raise Unfit("", UNKNOWN, f"the lake has no schema {name}@{number}")
            found = self._found[name, number] = Version(schema, _codec(schema))
        except (BadSchema, DamagedSchema) as error:
            raise self._keep((name, number), Unfit("", UNKNOWN, f"{name}@{number}: {error}")) from None
        except Unfit as missing:
            raise self._keep((name, number), missing) from None
        return found

    def by_reference(self, text: str) -> Version:
        """Return the version of a reference like `orders@3`, as the column `schema` has it.

        Raises:
            Unfit: as `version`.
        """
        name, _, number = text.rpartition("@")
        return self.version(name, int(number))

    def changes(self, name: str) -> list[tuple[int, int]]:
        """Return (time of registration in ns, version) of all versions of a schema, ascending.

        Raises:
            Unfit: there is none.
        """
        found = self._versions.get(name)
        if found is None:
            found, latest = [], 0
            for number in schemas.versions(self._storage, self._account, name):
                try:
                    schema = schemas.read_schema(self._storage, self._account, name, number)
                except DamagedSchema:
                    schema = None  # unfit in `version`
                latest = max(latest, schema.created_ns if schema is not None else latest)
                found.append((latest, number))
            self._versions[name] = found
        if not found:
            raise Unfit("", UNKNOWN, f"the lake has no schema {name}")
        return found

    def latest(self, name: str, time_ns: int) -> Version:
        """Return the latest version of a schema at a time.

        Raises:
            Unfit: there is none, or it cannot be used.
        """
        changes = self.changes(name)
        return self.version(name, changes[max(0, bisect_right(changes, (time_ns, 1 << 32)) - 1)][1])

    def named(self, named: NamedSchema, time_ns: int, payload: bytes) -> tuple[Version | None, bytes]:
        """Return (version, prefix of the payload) of a message; None: it has no schema.

        Args:
            named: the schema that it names.
            time_ns: its time.
            payload: its payload, or as much of it as a prefix may take.

        Raises:
            Unfit: the schema cannot be found or used.
        """
        prefix, reference = named.prefix, named.reference
        if prefix is None:
            return (None, b"") if reference is None else (self._referred(reference, time_ns), b"")
        found = self._referred(reference, time_ns) if reference is not None else self._prefixed(prefix)
        if found.schema.format != "protobuf" or prefix.fingerprint:
            return found, prefix.raw
        prefix = framing.split_path(prefix, payload)
        return self._at_path(found, prefix.path), prefix.raw

    def _referred(self, reference: Reference, time_ns: int) -> Version:
        if reference.version is None:
            return self.latest(reference.name, time_ns)
        return self.version(reference.name, reference.version)

    def _prefixed(self, prefix: Prefix) -> Version:
        """Return the version of an id or fingerprint."""
        key = prefix.fingerprint or prefix.id
        if (unfit := self._unfit.get(("", key))) is not None:
            raise unfit
        schema = self._fingerprints.get(prefix.fingerprint) if prefix.fingerprint else self._ids.get(prefix.id)
        try:
            if schema is None and prefix.fingerprint:
                schema = schemas.schema_of_fingerprint(self._storage, self._account, prefix.fingerprint)
            elif schema is None:
                schema = schemas.schema_of_id(self._storage, self._account, prefix.id)
        except DamagedSchema as error:
            raise self._keep(("", key), Unfit("", UNKNOWN, str(error))) from None
        if schema is None:
            what = f"fingerprint {prefix.fingerprint.hex()}" if prefix.fingerprint else f"id {prefix.id}"
            raise self._keep(("", key), Unfit("", UNKNOWN, f"the lake has no schema with {what}"))
        if prefix.fingerprint:
            self._fingerprints[prefix.fingerprint] = schema
        else:
            self._ids[prefix.id] = schema
        return self.version(schema.name, schema.version)

    def _at_path(self, version: Version, path: tuple[int, ...]) -> Version:
        """Return the version of a message of a Protobuf schema."""
        schema = version.schema
        if (known := self._paths.get((schema, path))) is not None:
            return known
        try:
            other = format_of(schema).at_path(schema, path)
            found = version if other == schema else Version(schema, _codec(other), message=other.message)
        except BadSchema as error:
            raise Unfit("", UNKNOWN, f"{schema.reference}: {error}") from None
        self._paths[schema, path] = found
        return found

    def _keep(self, key: tuple[str, int | bytes], unfit: Unfit) -> Unfit:
        self._unfit[key] = unfit
        return unfit
