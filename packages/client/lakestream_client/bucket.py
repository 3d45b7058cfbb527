"""Key-value buckets as they were.

Belongs here: keys and revisions over the stream of a bucket (ADR-8). The present bucket is nats-py's:
`client.jetstream.key_value(name)`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import msgspec

from lakestream_client.errors import NoSuchKey, NoSuchMessage
from lakestream_client.messages import Message
from lakestream_client.past import AsOf

OPERATION = "KV-Operation"
MARKER = "Nats-Marker-Reason"


class Entry(msgspec.Struct, frozen=True):
    """A revision of a key. `operation`: PUT, DEL or PURGE; the latter two have no value."""

    key: str
    value: bytes
    revision: int
    time: datetime
    time_ns: int
    operation: str


class Bucket:
    """A bucket by its name.

    Args:
        as_of: returns the bucket's stream at a time or sequence.
        history: yields the revisions of a subject, the newest first.
    """

    def __init__(self, name: str, as_of: Callable[..., AsOf], history: Callable[..., AsyncIterator[Message]]) -> None:
        self.name, self._as_of, self._history = name, as_of, history

    def at(self, time: Any = None, *, seq: int | None = None, exact: bool = True) -> BucketAt:
        """Return the bucket as it was at a time (inclusive), or right after revision `seq` was stored. No request is
        made.

        Args:
            time: a text such as `2026-05-01 12:00:00` (UTC), a datetime, or ns since the epoch.
            seq: a revision.
            exact: raise NoTimeTravel for a bucket that does not record what is overwritten and removed.
        """
        return BucketAt(self.name, self._as_of(f"KV_{self.name}", time, seq=seq, exact=exact))

    async def history(self, key: str, *, limit: int | None = None) -> AsyncIterator[Entry]:
        """Yield the revisions of a key, the newest first; see `Client.history`."""
        async for message in self._history(f"KV_{self.name}", _subject(self.name, key), limit=limit):
            yield _entry(self.name, message)


class BucketAt:
    """A bucket at one point, read-only."""

    def __init__(self, name: str, as_of: AsOf) -> None:
        self.name, self._as_of = name, as_of

    async def get(self, key: str) -> Entry:
        """Return the value of a key.

        Raises:
            NoSuchKey: it had none.
            NoSuchStream, NoTimeTravel, PastUnavailable, DirectGetDisabled.
        """
        try:
            found = _entry(self.name, await self._as_of.get(_subject(self.name, key)))
        except NoSuchMessage:
            found = None
        if found is None or found.operation != "PUT":
            raise NoSuchKey(f"bucket {self.name} had no key {key} as of {self._as_of.point}")
        return found

    async def items(self, keys: str = ">") -> AsyncIterator[Entry]:
        """Yield the values of all keys, or of those that a filter such as `db.*` matches, in order of revisions.

        Raises:
            NoSuchStream, NoTimeTravel, PastUnavailable, TooManySubjects, DirectGetDisabled.
        """
        async for message in self._as_of.last(_subject(self.name, keys)):
            entry = _entry(self.name, message)
            if entry.operation == "PUT":
                yield entry

    async def keys(self, keys: str = ">") -> list[str]:
        """Return the keys, sorted. Arguments and errors are those of `items`."""
        return sorted([entry.key async for entry in self.items(keys)])


def _subject(bucket: str, key: str) -> str:
    return f"$KV.{bucket}.{key}"


def _entry(bucket: str, message: Message) -> Entry:
    operation = message.header(OPERATION)
    if operation is None:
        operation = "PURGE" if message.header(MARKER) else "PUT"
    key = message.subject.removeprefix(_subject(bucket, ""))
    return Entry(key, message.data, message.seq, message.time, message.time_ns, operation)
