"""Modules that are loaded when they are first used.

Belongs here: postponing, or leaving out, what other packages import for features that are rarely used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
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
    """A finder and loader of a package that nobody can import, though others may ask whether it is installed."""

    def __init__(self, left: str) -> None:
        self._left = left

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name != self._left:
            return None
        others = (each.find_spec(name, path, target) for each in sys.meta_path if each is not self)
        loader: Any = self  # importlib.abc, which has its class, loads more than a start may
        return ModuleSpec(name, loader) if any(others) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        raise ModuleNotFoundError(f"{spec.name} is left out of this program", name=spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def leave_out(name: str) -> None:
    """Have every `import name` fail in this process, though `find_spec` still tells if the package is installed."""
    # Not None in sys.modules: an import in compiled modules returns it.
    sys.meta_path.insert(0, _LeftOut(name))
