"""Import from another registry with Confluent's API, and following it.

Belongs here: reading the source over HTTP, and writing what is new: versions in the order of their ids, with ids,
version numbers, references and deletions as there; compatibility levels too. An id that means another schema here is
left out and named. May be repeated, and ended at any time.

Source: Confluent's documentation, "Schema Registry API Reference", "Migrate schemas".
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from lakestream_registry.definitions import PostedSchema
from lakestream_registry.errors import RegistryError
from lakestream_registry.registry import Registry
from lakestream_registry.settings import DEFAULT_LEVEL, LEVELS, OF_SUBJECT, RegistrySettings
from lakestream_registry.subjects import name_of

TIMEOUT_S = 30.0
"""Time for an answer of the source."""
MAX_ANSWER = 256 << 20
"""Maximum size of an answer of the source, in bytes."""


class SourceFailed(Exception):
    """Raised when the source does not answer, or with an error."""


class Imported(msgspec.Struct):
    """Result of a pass: versions registered or marked as deleted, levels set, and refused versions with reasons."""

    versions: int = 0
    deleted: int = 0
    levels: int = 0
    refused: list[str] = []

    @property
    def changes(self) -> int:
        """Return the number of changes."""
        return self.versions + self.deleted + self.levels


class SourceRegistry:
    """A registry over HTTP.

    Args:
        url: its address; a login `user:password@` is sent as Basic.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceFailed(f"{url!r} is not the URL of a registry, like http://registry:8081")
        host = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._login = ""
        if parts.username:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._login = f"Basic {base64.b64encode(login.encode()).decode()}"

    def get(self, path: str, missing: Any = None) -> Any:
        """Return an answer; `missing` for 404. Raises SourceFailed."""
        request = urllib.request.Request(f"{self._url}/{path}", headers={"Accept": "application/json"})
        if self._login:
            request.add_unredirected_header("Authorization", self._login)  # another host does not get it
        try:
            context = ssl.create_default_context()
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
                raw = answer.read(MAX_ANSWER + 1)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return missing
            raise SourceFailed(f"{self._url}/{path} answers {error.code}: {error.read(300)!r}") from None
        except (OSError, ValueError) as error:
            raise SourceFailed(f"{self._url} does not answer: {error}") from None
        if len(raw) > MAX_ANSWER:
            raise SourceFailed(f"{self._url}/{path} answers with more than {MAX_ANSWER} bytes")
        try:
            return json.loads(raw)
        except ValueError:
            raise SourceFailed(f"{self._url}/{path} does not answer in JSON") from None

    def versions(self) -> list[dict[str, Any]]:
        """Return all versions, deleted ones too, in the order of their ids. Raises SourceFailed."""
        found = self.get("schemas?deleted=true", missing=None)
        if found is None:  # an old registry has no list of schemas
            found = [
                self.get(f"subjects/{quote(subject, safe='')}/versions/{version}?deleted=true", {})
                for subject in self.get("subjects?deleted=true", [])
                for version in self.get(f"subjects/{quote(subject, safe='')}/versions?deleted=true", [])
            ]
        wanted = [each for each in found if each.get("id") and each.get("subject")]
        return sorted(wanted, key=lambda each: (each["id"], each["subject"], each["version"]))

    def live(self) -> set[tuple[str, int]]:
        """Return (subject, version) of those that are not deleted. Raises SourceFailed."""
        found = self.get("schemas", missing=None)
        if found is not None:
            return {(each["subject"], each["version"]) for each in found}
        return {
            (subject, version)
            for subject in self.get("subjects", [])
            for version in self.get(f"subjects/{quote(subject, safe='')}/versions", [])
        }

    def level(self, subject: str | None) -> str:
        """Return the compatibility of a subject or (None) the registry; "" for none. Raises SourceFailed."""
        path = "config" if subject is None else f"config/{quote(subject, safe='')}"
        level = str(self.get(path, {}).get("compatibilityLevel") or "").upper()
        return level if level in LEVELS else ""


async def run_once(source: SourceRegistry, registry: Registry) -> Imported:
    """Bring what is new at the source. Raises SourceFailed, RegistryError 50001."""
    found = Imported()
    there, live = await asyncio.to_thread(source.versions), await asyncio.to_thread(source.live)
    await registry.refresh()
    for each in there:
        try:
            found.versions += await _version(registry, each)
        except RegistryError as error:
            if error.status >= 500:
                raise
            found.refused.append(f"{each['subject']} version {each['version']}, id {each['id']}: {error}")
    hidden: dict[str, set[int]] = {}
    for each in there:
        gone = hidden.setdefault(each["subject"], set())
        if (each["subject"], each["version"]) not in live:
            gone.add(each["version"])
    for subject, versions in hidden.items():
        found.deleted += await _deleted(registry, subject, versions)
    for place in (None, *hidden):
        level = await asyncio.to_thread(source.level, place)
        here = registry.own(place).level or (DEFAULT_LEVEL if place is None else "")
        if level != here:
            await registry.set_level(place, level)
            found.levels += 1
    return found


async def _version(registry: Registry, each: dict[str, Any]) -> bool:
    """Bring a version; return False if it is here already."""
    name = name_of(each["subject"])
    here = {schema.version: schema for schema in registry.versions(name, deleted=True)}.get(each["version"])
    if here is not None and here.id == each["id"]:
        return False
    posted = msgspec.convert(each, PostedSchema)
    await registry.bring(each["subject"], posted)
    return True


async def _deleted(registry: Registry, subject: str, versions: set[int]) -> int:
    """Delete the versions that the source has deleted, and bring back those that it has not; return the changes."""
    name = name_of(subject)
    here = {each.version for each in registry.versions(name, deleted=True)}
    wanted = tuple(sorted(versions & here))
    before = registry.own(subject).deleted
    if wanted == before:
        return 0

    def change(entry: RegistrySettings) -> RegistrySettings:
        return msgspec.structs.replace(entry, deleted=wanted)

    await registry.change(OF_SUBJECT + name, change)
    return len(set(wanted) ^ set(before))


async def follow(source: SourceRegistry, registry: Registry, every_s: float, told: Callable[[str], None]) -> None:
    """Bring what is new every so many seconds until cancelled. Failures are told, and the next pass tries again."""
    refused: set[str] = set()
    while True:
        try:
            found = await run_once(source, registry)
        except (SourceFailed, RegistryError) as error:
            told(f"{error}; the next attempt is in {every_s:g} s")
        else:
            if found.changes:
                told(f"{found.versions} versions, {found.deleted} deletions, {found.levels} levels")
            for each in found.refused:
                if each not in refused:
                    told(f"left out: {each}")
            refused = set(found.refused)
        await asyncio.sleep(every_s)
