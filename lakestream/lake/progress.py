"""Progress bars of long work.

Belongs here: a bar on stderr with the amount, the rate and the remaining time. It is shown on a terminal only, and not
with NO_COLOR; commands and Spark programs share it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import ProgressColumn, Task

Advance = Callable[[int], None]
WATCH_SECONDS = 0.5
"""Interval at which the amount of work that another program does is measured."""


def is_shown() -> bool:
    """Return True if bars are shown: stderr is a terminal, and NO_COLOR and TERM=dumb are not set."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def progress(what: str, total: int | None, done: int = 0, *, in_bytes: bool = False) -> Iterator[Advance]:
    """Show a bar while the context lasts; yield the function that advances it.

    Args:
        what: a word for the work.
        total: the amount in all; None: unknown.
        done: the part that was done before; it does not count for the rate.
        in_bytes: the amounts are bytes.
    """
    if not is_shown():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount: list[ProgressColumn] = [DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn()]
    columns = [TextColumn("{task.description}"), BarColumn(), *amount, _rate(in_bytes), TimeRemainingColumn()]
    same = sys.stdout.isatty()  # lines that go elsewhere must not go through the console of the bar
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=same) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda count: bar.advance(task, count)


@contextlib.contextmanager
def watched(what: str, total: int | None, amount: Callable[[], int], *, in_bytes: bool = False) -> Iterator[None]:
    """Show a bar of work that something else does while the context lasts.

    Args:
        what, total, in_bytes: as for `progress`.
        amount: returns the amount that is done; called in another thread.
    """
    if not is_shown():
        yield
        return
    stop = threading.Event()

    def watch(advance: Advance) -> None:
        seen = 0
        while not stop.wait(WATCH_SECONDS):
            now = amount()
            advance(now - seen)
            seen = now

    with progress(what, total, in_bytes=in_bytes) as advance:
        thread = threading.Thread(target=watch, args=(advance,), name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a line with a moving sign while the context lasts, for work whose amount is unknown."""
    if not is_shown():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


def _rate(in_bytes: bool) -> ProgressColumn:
    from rich.filesize import decimal
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """The speed of the work."""

        def render(self, task: Task) -> Text:
            speed = task.speed
            if speed is None:
                return Text("")
            return Text(f"{decimal(int(speed))}/s" if in_bytes else f"{speed:,.0f}/s")

    return Rate()
