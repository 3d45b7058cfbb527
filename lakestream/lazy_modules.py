"""Modules that are loaded when they are first used.

Belongs here: postponing, or leaving out, what other packages import for features that are rarely used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Postponed(ModuleType):
    """A module that becomes another one with its first use. LazyLoader's would be loaded by the second import of it."""

    def __getattr__(self, attribute: str) -> Any:
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        self.__dict__.update(importlib.import_module(name).__dict__)
        return self.__dict__[attribute] if attribute in self.__dict__ else getattr(sys.modules[name], attribute)


def postpone(name: str) -> None:
    """Have `import name` return a module that is loaded with the first use of it; nothing if it is loaded already."""
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        return
    sys.modules[name] = module = _Postponed(name)
    module.__spec__ = spec


class _LeftOut:
    """A finder that has nothing to find, and lets nobody else look."""

    def __init__(self, left: str) -> None:
        self._left = left

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self._left:
            raise ModuleNotFoundError(f"{name} is left out of this program", name=name)


def leave_out(name: str) -> None:
    """Have every `import name` fail in this process as if the package were not installed."""
    # Not None in sys.modules: an import in compiled modules returns it.
    sys.meta_path.insert(0, _LeftOut(name))
