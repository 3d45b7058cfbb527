"""The bucket of an account's schemas, `SCHEMAS`.

Belongs here: the stream below the bucket, the meaning of its messages, and the schemas that follow from them. A message
of `$KV.SCHEMAS.<name>` is the document of one version (schemas/schema.py), or a delete or purge marker of the name. Any
client may write to a bucket: a message that is no such document is ignored, with a line in the log.

A deleted schema has no versions; the next one registered under its name continues the numbers, because rows of tables
name versions. The numbers begin again only in a bucket that was purged or deleted as a whole.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from typing import Any

from lakestream.protocol import headers
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import MAX_VERSIONS, Schema, parse_document

BUCKET = "SCHEMAS"
STREAM = f"KV_{BUCKET}"
SUBJECTS = f"$KV.{BUCKET}."
MAX_SCHEMAS = 1_000
"""Maximum number of schemas of an account."""
MAX_TOTAL = 64 << 20
"""Maximum size of all documents of an account together, in bytes (64 MiB)."""
MARKER = b"KV-Operation"
MARKERS = (b"DEL", b"PURGE")
Log = Callable[[str], None]


def stream_config(replicas: int) -> dict[str, Any]:
    """Return the configuration of the bucket's stream, as clients create buckets. It stays out of the lake, which has
    the schemas in files."""
    return {
        "name": STREAM,
        "description": "Schemas of payloads (lakestream)",
        "subjects": [f"{SUBJECTS}>"],
        "max_msgs_per_subject": MAX_VERSIONS,
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_msg_size": -1,
        "discard": "new",
        "storage": "file",
        "num_replicas": replicas,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "metadata": {"lakestream.lake": "off"},
    }


class RegisteredSchemas:
    """The schemas of an account after some of its bucket's messages.

    Attributes: `last_seq`: sequence through which the bucket was read; `revision`: that of the last message applied;
    `size`: bytes of the documents; `highest_id`: of all documents, deleted ones too.
    """

    def __init__(self, log: Log = lambda text: None) -> None:
        self._log = log
        self._clear()

    def _clear(self) -> None:
        self.last_seq = self.revision = self.size = self.highest_id = 0
        self._versions: dict[str, list[Schema]] = {}
        self._highest: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._by_id: dict[int, list[Schema]] = {}
        self._ids: dict[tuple[str, str, str, str], int] = {}

    def clear(self) -> None:
        """Forget everything: the bucket is another one."""
        self._clear()

    # ------------------------------------------------------------------ reading
    def names(self) -> list[str]:
        """Return the names of schemas, sorted."""
        return sorted(self._versions)

    def __len__(self) -> int:
        return len(self._versions)

    def versions(self, name: str) -> list[Schema]:
        """Return the versions of a schema, ascending."""
        return list(self._versions.get(name, ()))

    def find(self, name: str, version: int | None = None) -> Schema | None:
        """Return one version of a schema, by default the latest."""
        versions = self._versions.get(name)
        if not versions:
            return None
        if version is None:
            return versions[-1]
        at = bisect.bisect_left(versions, version, key=_version)
        return versions[at] if at < len(versions) and versions[at].version == version else None

    def by_id(self, number: int) -> Schema | None:
        """Return the first version with this id, of Confluent's wire format."""
        return next(iter(self._by_id.get(number, ())), None)

    def all_by_id(self, number: int) -> list[Schema]:
        """Return the versions with this id: equal schemas under several names, or of several versions."""
        return list(self._by_id.get(number, ()))

    def id_for(self, schema: Schema, last_seq: int) -> int:
        """Return the id of a schema to come: that of an equal one, else one that none has had.

        Args:
            schema: without id.
            last_seq: of the bucket. Ids that were brought from another registry may be beyond it.
        """
        return self._ids.get(schema.identity) or max(last_seq, self.highest_id) + 1

    def schemas(self) -> Iterator[Schema]:
        """Iterate over all versions of all schemas."""
        for versions in self._versions.values():
            yield from versions

    def next_version(self, name: str) -> int:
        """Return the number of the next version of a schema."""
        return self._highest.get(name, 0) + 1

    # ------------------------------------------------------------------ messages of the bucket
    def apply(self, seq: int, subject: bytes, header: bytes, payload: bytes) -> Schema | None:
        """Apply a message of the bucket; return the version that it registers, if it does."""
        self.last_seq, self.revision = max(self.last_seq, seq), max(self.revision, seq)
        name = subject.decode("utf-8", "replace").removeprefix(SUBJECTS)
        if header and headers.get(header, MARKER) in MARKERS:
            self._delete(name)
            return None
        try:
            return self._add(name, payload)
        except BadSchema as error:
            self._log(f"schema {name[:128]!r}, revision {seq} of the bucket {BUCKET} is ignored: {error}")
            return None

    def _add(self, name: str, payload: bytes) -> Schema:
        schema = parse_document(payload)
        if schema.name != name:
            raise BadSchema(f"the document is of {schema.name!r}", "name")
        if schema.version < self.next_version(name):
            raise BadSchema(f"version {schema.version} exists, or existed", "version", "register schemas by the API")
        if name not in self._versions and len(self) >= MAX_SCHEMAS:
            raise BadSchema(f"the account has {MAX_SCHEMAS} schemas", remedy="delete some")
        if self.size + len(payload) > MAX_TOTAL:
            raise BadSchema(f"the schemas of the account have more than {MAX_TOTAL} bytes", remedy="delete some")
        self._versions.setdefault(name, []).append(schema)
        self._highest[name] = schema.version
        self._sizes[name] = self._sizes.get(name, 0) + len(payload)
        self.size += len(payload)
        if schema.id:
            self._by_id.setdefault(schema.id, []).append(schema)
            self._ids.setdefault(schema.identity, schema.id)
            self.highest_id = max(self.highest_id, schema.id)
        return schema

    def _delete(self, name: str) -> None:
        for schema in self._versions.pop(name, ()):
            if schema.id:
                self._by_id[schema.id].remove(schema)
        self.size -= self._sizes.pop(name, 0)


def _version(schema: Schema) -> int:
    return schema.version
