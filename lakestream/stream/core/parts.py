"""What of a stream only its leader has.

Belongs here: the rule that such parts keep. What a part holds beyond what the log tells every replica (a timer, a batch
that is being gathered, a cache) begins with `start` and is forgotten with `stop`.
"""

from __future__ import annotations

from typing import Protocol


class Part(Protocol):
    """A part of a stream that is at work while this node leads it."""

    def start(self) -> None:
        """This node leads, and everything that is committed is applied. Called once before each `stop`."""

    def stop(self) -> None:
        """It leads no more, or the stream ends here. May be called without `start`, and twice."""
