"""How much the streams of a server hold together.

Belongs here: the sums behind `max_memory_store` and `max_file_store` at publish: a message that comes when more than
that is stored already is refused with 10023. What streams reserve by their max_bytes is checked when they are created
and changed (stream_rules.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakestream.jetstream.stream import Stream


class StorageUse:
    """The bytes of all streams here, by storage. What is on its way to the disk does not count yet.

    Args:
        max_memory, max_file: the limits; below 0: none.
    """

    def __init__(self, max_memory: int, max_file: int) -> None:
        self._limits = {"memory": max_memory, "file": max_file}
        self.used = {"memory": 0, "file": 0}
        self._streams: dict[str, tuple[Stream, int]] = {}

    def note(self, stream: Stream) -> None:
        """A stream is here, or what it holds may have changed."""
        storage, size = stream.config.storage, stream.store.bytes
        known = self._streams.get(stream.name)
        if known is not None and known[1] == size and known[0] is stream:
            return
        was_full = self.full(storage)
        self._streams[stream.name] = stream, size
        self.used[storage] += size - (known[1] if known is not None else 0)
        if self.full(storage):
            others = [other for other, _ in self._streams.values() if other.config.storage == storage]
            for other in [stream] if was_full else others:
                other.intake.guard()  # messages without headers have to be judged now

    def forget(self, name: str) -> None:
        """A stream is here no more."""
        known = self._streams.pop(name, None)
        if known is not None:
            self.used[known[0].config.storage] -= known[1]

    def full(self, storage: str) -> bool:
        """Whether no message is taken."""
        return 0 <= self._limits[storage] < self.used[storage]
