"""Results between GetFlightInfo, which has to tell their schema, and DoGet, which reads them.

Belongs here: a query is executed once for both. A small result waits as a whole and costs the server nothing; of larger
ones only the newest waits, since its query keeps one of the account's places. A result that is not here any more is
that of a new execution. Descriptions of prepared statements are kept for as long.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

WHOLE_BYTES = 1 << 20
"""Size up to which a result is read as a whole before its schema is told (1 MiB)."""
KEPT_S = 5.0
"""Time for which a result waits to be read (5 s); beyond it, messages that came meanwhile belong to the answer."""
MOST = 64
"""Results that wait at the same time; beyond it the oldest is dropped."""


class BegunResult:
    """A result of which some batches were read, at least one.

    Args:
        batches: are closed when nothing more of them is wanted.

    Attributes:
        is_open: there are more of them.
        made: time of the monotonic clock, in seconds.
    """

    def __init__(self, batches: Generator[Any]) -> None:
        self._read, self._rest, size = list[Any](), batches, 0
        self.is_open = False
        for batch in batches:
            self._read.append(batch)
            size += batch.nbytes
            if size > WHOLE_BYTES:
                self.is_open = True
                break
        self.made = time.monotonic()

    @property
    def schema(self) -> Any:
        """Return the schema."""
        return self._read[0].schema

    def batches(self) -> Iterator[Any]:
        """Yield all batches, once."""
        yield from self._read
        yield from self._rest

    def end(self) -> None:
        """End the query if it still runs."""
        self._rest.close()


class BegunResults:
    """The results that wait, of all logins. Safe for use by several threads."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[object, BegunResult]] = {}
        self._lock = threading.Lock()

    def keep(self, login: object, result: BegunResult) -> bytes:
        """Have a result of a login wait; return its name."""
        name, now = secrets.token_bytes(16), time.monotonic()
        with self._lock:
            room = len(self._waiting) - MOST
            gone = [
                each
                for number, (each, (owner, other)) in enumerate(self._waiting.items())
                if number <= room or now - other.made > KEPT_S or (owner is login and other.is_open and result.is_open)
            ]
            ended = [self._waiting.pop(each)[1] for each in gone]
            self._waiting[name] = login, result
        for each in ended:
            each.end()
        return name

    def take(self, login: object, name: bytes) -> BegunResult | None:
        """Return a result of a login that waits, for the only time; None if it does not, or for too long."""
        with self._lock:
            owner, found = self._waiting.get(name, (None, None))
            if found is None or owner is not login:
                return None
            del self._waiting[name]
        if time.monotonic() - found.made <= KEPT_S:
            return found
        found.end()
        return None


class Recent(Generic[K, V]):
    """Values of the last seconds by their keys. Safe for use by several threads."""

    def __init__(self) -> None:
        self._values: dict[K, tuple[float, V]] = {}
        self._lock = threading.Lock()

    def find(self, key: K) -> V | None:
        """Return the value of a key; None if it is not there, or too old."""
        made, value = self._values.get(key, (0.0, None))
        return value if time.monotonic() - made <= KEPT_S else None

    def keep(self, key: K, value: V) -> V:
        """Keep a value, and return it."""
        with self._lock:
            while len(self._values) >= MOST:
                del self._values[next(iter(self._values))]
            self._values[key] = time.monotonic(), value
        return value
