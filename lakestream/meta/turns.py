"""Requests that have to wait for one another.

Belongs here: changes of one stream, or of one stream's consumers, one after the other, each checked against what the
one before left; and how many may wait in all (docs/internals/api.md#overload).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from lakestream.protocol.api.errors import ApiError
from lakestream.protocol.api.request import Request

REQUEST_QUEUE_LIMIT = 10_000
"""Requests that may wait, unless the options say otherwise. One more, and all of them are dropped unanswered, as with
nats-server: their clients have long given up, and those that come now are served at once."""

Over = Callable[[], None]
"""Called once, when a change has been answered."""


class Turns:
    """The queues of one server.

    Args:
        limit: how many requests may wait; 0: `REQUEST_QUEUE_LIMIT`.
        dropped: told how many were.
    """

    def __init__(self, limit: int, dropped: Callable[[int], None]) -> None:
        self._limit = limit or REQUEST_QUEUE_LIMIT
        self._dropped = dropped
        self._queues: dict[str, deque[Callable[[], None]]] = {}
        """By what they are about; the first of each is under way."""

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return sum(len(queue) - 1 for queue in self._queues.values())

    def take(self, about: str, request: Request, work: Callable[[Over], None]) -> None:
        """Run `work(over)` when nothing else about the same is under way; it calls `over` when it has answered.

        An ApiError that it raises is the answer; after any other exception the answer is an internal error.
        """

        def run() -> None:
            try:
                work(over)
            except ApiError as error:
                request.fail(error)
                over()
            except Exception as error:  # a fault of ours must not keep the later requests waiting for good
                request.crash(error)
                if self._queues.get(about, (None,))[0] is run:
                    over()

        def over() -> None:
            queue = self._queues[about]
            queue.popleft()
            if queue:
                queue[0]()
            else:
                del self._queues[about]

        queue = self._queues.get(about)
        if queue is None:
            self._queues[about] = deque([run])
            run()
        elif self.waiting >= self._limit:
            self._drop()
        else:
            queue.append(run)

    def _drop(self) -> None:
        dropped = self.waiting + 1
        for about, queue in self._queues.items():
            self._queues[about] = deque([queue[0]])
        self._dropped(dropped)
