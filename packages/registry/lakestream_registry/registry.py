"""The operations of the registry, without HTTP.

Belongs here: which versions a request sees, registration, deletion, compatibility, settings and modes, as Confluent's
registry has them. Deleted versions stay in the bucket `SCHEMAS`: tables and messages refer to them. So an id means one
schema for ever, and a version number of a subject is not given twice.

Source: Confluent's documentation, "Schema Registry API Reference", "Delete a Schema", "Schema Registry modes".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from lakestream.account.schemas.bucket import MAX_SCHEMAS, MAX_TOTAL
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import MAX_VERSIONS, Compatibility, Schema
from lakestream_registry import errors, settings
from lakestream_registry.definitions import PostedSchema, SchemaLink, is_equal, links_of, schema_of
from lakestream_registry.errors import RegistryError
from lakestream_registry.settings import DEFAULT_LEVEL, DEFAULT_MODE, GLOBAL, NOTHING, OF_SUBJECT, RegistrySettings
from lakestream_registry.store import RegistryStore
from lakestream_registry.subjects import name_of, subject_of
from lakestream_schemas.compatibility import find_conflicts

ATTEMPTS = 8
"""Maximum number of attempts to write while others write to the bucket."""
MAX_CONFLICTS = 100
"""Maximum number of conflicts in an answer."""


class Registry:
    """The registry of one account.

    Args:
        store: its buckets.
        now_ns: returns the present, ns since the epoch.
    """

    def __init__(self, store: RegistryStore, now_ns: Callable[[], int]) -> None:
        self._store, self._now_ns = store, now_ns
        self._turn = asyncio.Lock()

    async def refresh(self) -> None:
        """Read what others have written. Raises RegistryError 50001."""
        await self._store.refresh()

    # ------------------------------------------------------------------ reading
    def names(self, deleted: bool = False) -> list[str]:
        """Return the names of the subjects that have versions, sorted by subject."""
        found = (name for name in self._store.schemas.names() if self.versions(name, deleted))
        return sorted(found, key=subject_of)

    def versions(self, name: str, deleted: bool = False) -> list[Schema]:
        """Return the versions of a subject, ascending; `deleted`: with those that were deleted but not for good."""
        hidden = set(self._entry(name).removed)
        if not deleted:
            hidden.update(self._entry(name).deleted)
        return [each for each in self._store.schemas.versions(name) if each.version not in hidden]

    def is_deleted(self, schema: Schema) -> bool:
        """Return True if a version was deleted."""
        return schema.version in self._entry(schema.name).deleted

    def version(self, subject: str, text: str, deleted: bool = False) -> Schema:
        """Return a version by its number, `latest` or -1. Raises RegistryError 40401, 40402, 42202."""
        name, number = name_of(subject), version_number(text)
        found = self.versions(name, deleted)
        if not found:
            raise errors.no_subject(subject)
        if number == -1:
            return found[-1]
        for each in found:
            if each.version == number:
                return each
        raise errors.no_version(number)

    def with_id(self, number: int, deleted: bool = True) -> list[Schema]:
        """Return the versions with an id, sorted by subject. Raises RegistryError 40403."""
        found = [each for each in self._store.schemas.all_by_id(number) if each in self.versions(each.name, deleted)]
        if not found:
            raise errors.no_schema(number)
        return sorted(found, key=lambda each: (subject_of(each.name), each.version))

    @property
    def highest_id(self) -> int:
        """Return the highest id."""
        return self._store.schemas.highest_id

    def users_of(self, subject: str, version: int) -> list[Schema]:
        """Return the versions that refer to a version."""
        found = []
        for each in self._all():
            if any((name_of(link.subject), link.version) == (name_of(subject), version) for link in links_of(each)):
                found.append(each)
        return found

    def _all(self, deleted: bool = False) -> Iterator[Schema]:
        for name in self.names(deleted):
            yield from self.versions(name, deleted)

    async def lookup(self, subject: str, posted: PostedSchema, normalized: bool, deleted: bool) -> Schema:
        """Return the newest version that a definition repeats. Raises RegistryError 40401, 40403, 42201."""
        name = name_of(subject)
        found = self.versions(name, deleted)
        if not found:
            raise errors.no_subject(subject)
        schema = await self._schema(name, posted)
        equal = await asyncio.to_thread(_equal, schema, found, normalized)
        if equal is None:
            raise errors.no_schema()
        return equal

    # ------------------------------------------------------------------ registration
    async def register(self, subject: str, posted: PostedSchema, normalized: bool) -> Schema:
        """Return the version that a definition becomes, or is already.

        Raises:
            RegistryError: 42201 it is no schema; 409 it cannot follow the others; 42205 the mode forbids it.
        """
        return await self._register(subject, posted, normalized, False)

    async def bring(self, subject: str, posted: PostedSchema) -> Schema:
        """Return the version that a definition of another registry becomes, with its id and number, in any mode.

        Raises:
            RegistryError: 42201 it is no schema; 42205 the id means another schema here, or later versions exist.
        """
        return await self._register(subject, posted, False, True)

    async def _register(self, subject: str, posted: PostedSchema, normalized: bool, brought: bool) -> Schema:
        name = name_of(subject)
        async with self._turn:
            for _ in range(ATTEMPTS):
                schema = await self._schema(name, posted)
                known = self.versions(name)
                equal = await asyncio.to_thread(_equal, schema, known, normalized)
                if not brought and equal is not None and posted.id in (None, -1, 0, equal.id):
                    return equal
                if not brought:
                    self._check_mode(subject, name, imports=(posted.id or 0) > 0)
                schema = await self._candidate(subject, schema, posted, known)
                document = schema.document()
                if self._store.schemas.size + len(document) > MAX_TOTAL:
                    raise errors.bad_schema(f"the schemas of the account would have more than {MAX_TOTAL} bytes")
                written = await self._store.put_schema(name, document)
                await self.refresh()
                if written:
                    return schema
        raise errors.unavailable(f"the bucket changed {ATTEMPTS} times meanwhile")

    async def _candidate(self, subject: str, schema: Schema, posted: PostedSchema, known: list[Schema]) -> Schema:
        """Return a schema with its version and id."""
        name, schemas = schema.name, self._store.schemas
        wanted = posted.id or 0
        version = schemas.next_version(name)
        if wanted > 0 and posted.version:
            if posted.version < version:
                raise errors.not_permitted(f"version {posted.version} of {subject} exists, or existed; import in order")
            version = posted.version
        if version > MAX_VERSIONS:
            raise errors.bad_schema(f"a subject has at most {MAX_VERSIONS} versions; use another subject")
        if schemas.find(name) is None and len(schemas) >= MAX_SCHEMAS:
            raise errors.bad_schema(f"an account has at most {MAX_SCHEMAS} subjects")
        if wanted > 0 and any(each.identity != schema.identity for each in schemas.all_by_id(wanted)):
            raise errors.not_permitted(f"Overwrite new schema with id {wanted} is not permitted.")
        level = self.level(name)
        schema = msgspec.structs.replace(
            schema,
            version=version,
            id=wanted if wanted > 0 else schemas.id_for(schema, self._store.last_seq),
            compatibility=cast(Compatibility, level.lower()),
            created_ns=self._now_ns(),
        )
        if wanted <= 0 and (conflicts := await self._conflicts(schema, known)):
            raise errors.incompatible(subject, conflicts)
        return schema

    async def _schema(self, name: str, posted: PostedSchema) -> Schema:
        return await asyncio.to_thread(schema_of, name, posted, self._linked)

    def _linked(self, link: SchemaLink) -> Schema:
        name = name_of(link.subject)
        found = self.versions(name, deleted=True)
        if link.version == -1 and found:
            return found[-1]
        for each in found:
            if each.version == link.version:
                return each
        raise errors.bad_schema(f"its reference {link.name!r}: {link.subject} version {link.version} does not exist")

    async def _conflicts(self, schema: Schema, known: list[Schema]) -> list[str]:
        def compare() -> list[str]:
            try:
                found = find_conflicts(schema, known, strict=True)
            except BadSchema as error:
                return [str(error)]
            return [str(each) for each in found[:MAX_CONFLICTS]]

        return await asyncio.to_thread(compare)

    # ------------------------------------------------------------------ compatibility
    async def conflicts(self, subject: str, version: str | None, posted: PostedSchema) -> list[str]:
        """Return the reasons why a definition cannot follow one version, or (None) those that the level compares with.

        Raises:
            RegistryError: 40402, 42201, 42202.
        """
        name = name_of(subject)
        known, level = self.versions(name), self.level(name)
        if version is not None:
            level = level.removesuffix("_TRANSITIVE")
            if known or version_number(version) != -1:
                if not known:
                    raise errors.no_version(version_number(version))
                known = [self.version(subject, version)]
        schema = await self._schema(name, posted)
        level_of = cast(Compatibility, level.lower())
        number = known[-1].version + 1 if known else 1
        return await self._conflicts(msgspec.structs.replace(schema, compatibility=level_of, version=number), known)

    # ------------------------------------------------------------------ deletion
    async def delete(self, subject: str, permanent: bool) -> list[int]:
        """Delete the versions of a subject; return their numbers. Raises RegistryError 40401, 40404 to 40407, 42206."""
        name = name_of(subject)
        self._check_writable(subject, name)
        live, all_of = self.versions(name), self.versions(name, deleted=True)
        if not all_of:
            raise errors.no_subject(subject)
        if permanent and live:
            raise errors.not_deleted(subject)
        if not permanent and not live:
            raise errors.is_deleted(subject)
        found = [each.version for each in (all_of if permanent else live)]
        self._check_free(subject, found)
        await self._hide(name, found, permanent, level="", mode="")
        return found

    async def delete_version(self, subject: str, text: str, permanent: bool) -> int:
        """Delete a version; return its number. Raises RegistryError as `delete`."""
        name = name_of(subject)
        self._check_writable(subject, name)
        if permanent and version_number(text) == -1:
            raise errors.bad_version(text)
        found = self.version(subject, text, deleted=version_number(text) != -1)
        number = found.version
        if permanent != self.is_deleted(found):
            raise errors.not_deleted(subject, number) if permanent else errors.is_deleted(subject, number)
        self._check_free(subject, [number])
        await self._hide(name, [number], permanent)
        return number

    def _check_free(self, subject: str, versions: list[int]) -> None:
        for number in versions:
            if self.users_of(subject, number):
                raise errors.is_referenced(subject, number)

    async def _hide(self, name: str, versions: list[int], permanent: bool, **more: str) -> None:
        def changed(entry: RegistrySettings) -> RegistrySettings:
            gone = set(versions)
            if permanent:
                kept = tuple(each for each in entry.deleted if each not in gone)
                return msgspec.structs.replace(
                    entry, deleted=kept, removed=tuple(sorted({*entry.removed, *gone})), **more
                )
            return msgspec.structs.replace(entry, deleted=tuple(sorted({*entry.deleted, *gone})), **more)

        await self.change(OF_SUBJECT + name, changed)

    # ------------------------------------------------------------------ settings
    def level(self, name: str) -> str:
        """Return the compatibility that counts for a subject."""
        return self._entry(name).level or self.global_entry.level or DEFAULT_LEVEL

    def mode(self, name: str) -> str:
        """Return the mode that counts for a subject."""
        shared = self.global_entry.mode or DEFAULT_MODE
        return "READONLY" if shared == "READONLY_OVERRIDE" else self._entry(name).mode or shared

    @property
    def global_entry(self) -> RegistrySettings:
        """Return the settings of the account."""
        return self._store.entries.get(GLOBAL, NOTHING)

    def own(self, subject: str | None) -> RegistrySettings:
        """Return the settings of a subject, or (None) of the account."""
        return self.global_entry if subject is None else self._entry(name_of(subject))

    async def set_level(self, subject: str | None, level: str) -> None:
        """Set the compatibility of a subject or (None) the account; "" removes it. Raises RegistryError 42203."""
        if level and level not in settings.LEVELS:
            valid = "none, backward, forward, full, backward_transitive, forward_transitive, and full_transitive"
            raise RegistryError(42203, f"Invalid compatibility level. Valid values are {valid}")
        await self.change(_key(subject), lambda entry: msgspec.structs.replace(entry, level=level))

    async def set_mode(self, subject: str | None, mode: str, force: bool = False) -> None:
        """Set the mode of a subject or (None) the account; "" removes it. Raises RegistryError 42204, 42205."""
        if mode and mode not in settings.MODES:
            raise RegistryError(42204, f"Invalid mode. Valid values are {', '.join(settings.MODES)}")
        used = self.names() if subject is None else self.versions(name_of(subject))
        if mode == "IMPORT" and used and not force:
            raise errors.not_permitted("Cannot import since found existing subjects")
        await self.change(_key(subject), lambda entry: msgspec.structs.replace(entry, mode=mode))

    async def change(self, key: str, change: Callable[[RegistrySettings], RegistrySettings]) -> None:
        """Change an entry. Raises RegistryError 50001."""
        for _ in range(ATTEMPTS):
            before = self._store.entries.get(key, NOTHING)
            after = change(before)
            written = after == before or await self._store.put_entry(key, after)
            await self.refresh()
            if written:
                return
        raise errors.unavailable(f"the settings changed {ATTEMPTS} times meanwhile")

    def _entry(self, name: str) -> RegistrySettings:
        return self._store.entries.get(OF_SUBJECT + name, NOTHING)

    def _check_writable(self, subject: str, name: str) -> None:
        if self.mode(name) == "READONLY":
            raise errors.not_permitted(f"Subject {subject} is in read-only mode")

    def _check_mode(self, subject: str, name: str, imports: bool) -> None:
        self._check_writable(subject, name)
        if imports and self.mode(name) != "IMPORT":
            raise errors.not_permitted(f"Subject {subject} is not in import mode")
        if not imports and self.mode(name) != "READWRITE":
            raise errors.not_permitted(f"Subject {subject} is not in read-write mode")


def version_number(text: str) -> int:
    """Return the number of a version, -1 for the latest. Raises RegistryError 42202."""
    if text in ("latest", "-1"):
        return -1
    if text.isascii() and text.isdecimal() and 1 <= int(text) < 2**31:
        return int(text)
    raise errors.bad_version(text)


def _key(subject: str | None) -> str:
    return GLOBAL if subject is None else OF_SUBJECT + name_of(subject)


def _equal(schema: Schema, known: list[Schema], normalized: bool) -> Schema | None:
    newest = list(reversed(known))
    found = next((each for each in newest if each.identity == schema.identity), None)  # without parsing any text
    return found or next((each for each in newest if is_equal(schema, each, normalized)), None)
