"""Objects that have ended, for the interpreter's collector of cycles.

Belongs here: letting the collector look again at objects that it was told to leave alone.

`server/heap.py` exempts all objects that have lived for some seconds, so that no collection takes long. A consumer and
its parts refer to each other, so reference counts do not free them, and the collector would never look there again. A
full collection would, and stall everybody. So what ends is made young again, and goes with one of the next collections.
"""

from __future__ import annotations

import ctypes
import gc
from types import FunctionType, ModuleType

MOST = 1000
"""Objects that are made young at once (600, below 1 ms). A consumer has 55, a stream 230."""
LARGE = 64
"""Containers with more entries are not entered (64)."""
_PLAIN = ("builtins", "collections", "functools", "array", "asyncio.locks")
_untrack, _track = ctypes.pythonapi.PyObject_GC_UnTrack, ctypes.pythonapi.PyObject_GC_Track
_untrack.argtypes = _track.argtypes = (ctypes.py_object,)
_untrack.restype = _track.restype = None


def reexamine(ended: object, of: tuple[str, ...], *shared: object) -> None:
    """Let the next collections look at an object and its parts, although they are exempt.

    It costs no more than a look if others still refer to them.

    Args:
        of: modules, or packages, of the classes of its parts.
        shared: objects that it refers to and that go on. Others of its class do, too.
    """
    seen = {id(ended), *map(id, shared)}
    found = [ended]
    for part in found:
        for each in gc.get_referents(part):
            if id(each) in seen or type(each) is type(ended) or len(found) == MOST:
                continue
            if gc.is_tracked(each) and _is_part(each, of):
                seen.add(id(each))
                found.append(each)
    for part in found:
        _untrack(part)
        _track(part)


def _is_part(each: object, of: tuple[str, ...]) -> bool:
    if isinstance(each, type | ModuleType):
        return False
    if isinstance(each, dict | list | set) and (len(each) > LARGE or "__name__" in each):
        return False  # an index of all parts of this kind; or the namespace of a module, to which functions refer
    module = type(each).__module__
    return module in _PLAIN or module.startswith(of) or isinstance(each, FunctionType)
