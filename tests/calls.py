"""Recording which functions of lakestream are called, and in which order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tests.docs.blocks import ROOT


class Calls:
    """The first call of each function, by module path below `lakestream/` and qualified name."""

    def __init__(self, first: Mapping[tuple[str, str], int] | None = None) -> None:
        self.first = dict(first or {})

    def missing(self, steps: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return those of some functions that were not called."""
        return [step for step in steps if step not in self.first]

    def ordered(self, steps: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return functions in the order of their first calls."""
        return sorted(steps, key=lambda step: self.first[step])


@contextmanager
def recorded() -> Iterator[Calls]:
    """Record calls of this thread, and of threads that start meanwhile."""
    calls, root = Calls(), str(ROOT / "lakestream") + "/"

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (file := frame.f_code.co_filename).startswith(root):
            calls.first.setdefault((file[len(root) :], frame.f_code.co_qualname), len(calls.first))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]
