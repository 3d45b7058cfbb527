"""The output of a move: lines, progress bars on a terminal, or events for scripts.

Belongs here: the three forms of output. Events are JSON, one a line, each with `event`; their names and fields are in
docs/moving.md.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from lakestream.cli.terminal import console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EVERY_S = 1.0
"""Interval of `progress` events (1 s)."""


class MoveOutput:
    """The output of one run.

    Args:
        events: print events instead of lines.
    """

    def __init__(self, events: bool) -> None:
        self._events = events
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._told: dict[str, float] = {}

    def __enter__(self) -> MoveOutput:
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        if not self._events and sys.stdout.isatty() and not plain:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
            )
            self._bars = Progress(*columns, console=console())
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def finished(self, stream: str) -> None:
        """Remove the bars of a stream."""
        for label in [label for label in self._tasks if label.startswith(f"{stream} (")]:
            task = self._tasks.pop(label)
            if self._bars is not None:
                self._bars.remove_task(task)

    def say(self, event: str, text: str, **fields: Any) -> None:
        """Report an event. `text`: the line for people; "" for none."""
        if self._events:
            print(json.dumps({"event": event, **fields}, ensure_ascii=False), flush=True)
        elif text and self._bars is not None:
            self._bars.console.print(text, markup=False)
        elif text:
            print(text, flush=True)

    def progress(self, what: str, stream: str, done: int, total: int, now: float, unit: str = "messages") -> None:
        """Report how far a stream is. `now`: seconds of any clock."""
        label = f"{stream} ({what})"
        if self._bars is not None:
            task = self._tasks.get(label)
            if task is None:
                task = self._tasks[label] = self._bars.add_task(label, total=total or 1, rate="")
            speed = next((each.speed for each in self._bars.tasks if each.id == task), None)
            rate = f"{speed:,.0f} {unit}/s" if speed else ""
            self._bars.update(task, completed=done if total else 1, total=total or 1, rate=rate)
        elif self._events and now - self._told.get(label, -EVERY_S) >= EVERY_S:
            self._told[label] = now
            self.say("progress", "", stream=stream, what=what, done=done, total=total, unit=unit)
