"""Linearizable reads.

Belongs here: ReadIndex (Raft §8, thesis §6.4): a read may be served from everything that was committed when it came,
once a quorum confirmed, after it came, that this leader still leads. The confirmations are the echoes of rounds.
"""

from __future__ import annotations

from collections import deque


class Reads:
    """The reads of one leadership."""

    __slots__ = ("_asked", "_new")

    def __init__(self) -> None:
        self._new: list[object] = []
        self._asked: deque[tuple[int, int, list[object]]] = deque()

    def __len__(self) -> int:
        return len(self._new) + len(self._asked)

    @property
    def waiting(self) -> bool:
        """Return True if there are reads that no round confirms yet."""
        return bool(self._new)

    def add(self, context: object) -> None:
        self._new.append(context)

    def ask(self, round_id: int, index: int) -> None:
        """Assign the new reads to a round that begins with everything through `index` committed."""
        self._asked.append((round_id, index, self._new))
        self._new = []

    def confirmed(self, round_id: int) -> list[tuple[object, int]]:
        """Return (context, index) of the reads that may be served once a quorum answered this round."""
        found: list[tuple[object, int]] = []
        while self._asked and self._asked[0][0] <= round_id:
            _, index, contexts = self._asked.popleft()
            found.extend((context, index) for context in contexts)
        return found

    def drop(self) -> list[object]:
        """Forget all reads; return the contexts of those that were not served."""
        found = [context for _, _, contexts in self._asked for context in contexts]
        found.extend(self._new)
        self._asked.clear()
        self._new = []
        return found
