"""Objects that have ended, for the interpreter's collector of cycles.

Belongs here: letting the collector look again at objects that it was told to leave alone.

`server/heap.py` exempts all objects that have lived for some seconds, so that no collection takes long. A consumer and
its parts refer to each other, so reference counts do not free them, and the collector would never look there again. A
full collection would, and stall everybody. So what ends is made young again, and goes with one of the next collections.
"""

from __future__ import annotations

from functools import lru_cache
from types import FunctionType, ModuleType

from lakestream.native import renew

MOST = 1000
"""Objects that are made young at once (1,000, about 0.3 ms). A consumer has 70, a stream 230."""
LARGE = 64
"""Containers with more entries are not entered (64): they are indexes of all parts of a kind."""
_PLAIN = ("builtins", "collections", "functools", "array", "asyncio.locks")
_COLLECTED = 1 << 14  # Py_TPFLAGS_HAVE_GC: other objects refer to none


def reexamine(ended: object, of: tuple[str, ...], *shared: object) -> None:
    """Let the next collections look at an object and its parts, although they are exempt.

    It costs no more than a look if others still refer to them.

    Args:
        of: modules, or packages, of the classes of its parts.
        shared: objects that it refers to and that go on. Others of its class do, too.
    """
    own: type = type(ended)
    renew(ended, shared, _kinds(own, of), MOST, LARGE)


class _Kinds(dict[type, bool]):
    """Classes, and True for those whose objects may be parts of what has ended: found once, not for each object."""

    def __init__(self, ended: type, of: tuple[str, ...]) -> None:
        super().__init__({ended: False})
        self._of = of

    def __missing__(self, kind: type) -> bool:
        known = kind.__module__ in _PLAIN or kind.__module__.startswith(self._of) or kind is FunctionType
        self[kind] = known and bool(kind.__flags__ & _COLLECTED) and not issubclass(kind, type | ModuleType)
        return self[kind]


@lru_cache(maxsize=16)
def _kinds(ended: type, of: tuple[str, ...]) -> _Kinds:
    return _Kinds(ended, of)
