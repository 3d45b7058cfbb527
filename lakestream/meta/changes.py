"""Requests that are processed one at a time, and limits of requests.

Belongs here: running changes of one stream, or of one stream's consumers, one after the other, each checked against the
result of the one before; and the limits of waiting requests, and of those that arrive together
(docs/internals/api.md#overload).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from lakestream.ports import Share
from lakestream.protocol.api.errors import ApiError
from lakestream.protocol.api.request import Request

REQUEST_QUEUE_LIMIT = 10_000
"""Default limit of waiting requests. When it is exceeded, all of them are dropped without an answer, as with
nats-server: their clients have timed out, and later ones are served at once."""

Finished = Callable[[], None]
"""Called once a change has been answered."""


Work = Callable[[Finished], Iterator[None] | None]
"""A change. One that takes long returns its steps, which are done while turns of the event loop have time for them."""


class _Change(NamedTuple):
    key: str
    request: Request
    work: Work


class ChangeQueues:
    """The queues of one server.

    Args:
        limit: maximum number of waiting requests; 0: `REQUEST_QUEUE_LIMIT`.
        dropped: called with the number of requests that were dropped.
        share: the time that changes may take of a turn, together with other requests of clients.

    Attributes:
        waiting: number of waiting requests, without those in progress.
    """

    def __init__(
        self,
        limit: int,
        dropped: Callable[[int], None],
        share: Share,
    ) -> None:
        self._limit = limit or REQUEST_QUEUE_LIMIT
        self._dropped, self._share = dropped, share
        self._due: deque[str] = deque()
        """Queues whose first request is to be begun."""
        self._beginning = False
        self._queues: dict[str, deque[_Change]] = {}
        """Queues by key; the first request of each is in progress."""
        self.waiting = 0

    def take(self, key: str, request: Request, work: Work) -> None:
        """Run `work(finished)` after all earlier requests with the same `key`; it calls `finished` after its answer.

        If it, or one of its steps, raises ApiError, the request fails with it; after any other exception with an
        internal error.
        """

        queue = self._queues.get(key)
        if queue is None and len(self._queues) >= self._limit:
            self._dropped(1)  # each of so many is in progress
        elif queue is None:
            change = _Change(key, request, work)
            self._queues[key] = deque([change])
            self._run(change)
        elif self.waiting >= self._limit:
            self._drop()
        else:
            self.waiting += 1
            queue.append(_Change(key, request, work))

    def _run(self, change: _Change) -> None:
        self._share.run_in_steps(self._steps(change))

    def _steps(self, change: _Change) -> Iterator[None]:
        """Run a change in its steps."""
        finished = partial(self._finished, change.key)  # it does not refer to the change, else the two would be a cycle
        try:
            steps = change.work(finished)
            if steps is not None:
                yield from steps
        except ApiError as error:
            change.request.fail(error)
            finished()
        except Exception as error:  # a bug must not block the later requests for good
            change.request.crash(error)
            if self._queues.get(change.key, (None,))[0] is change:
                finished()

    def _finished(self, key: str) -> None:
        queue = self._queues[key]
        queue.popleft()
        if queue:
            self.waiting -= 1
            self._due.append(key)
            if not self._beginning:
                self._share.run_in_steps(self._begin())
        else:
            del self._queues[key]

    def _begin(self) -> Iterator[None]:
        """Begin the requests whose turn it is. Those that are refused at once end here, not in one another."""
        self._beginning = True
        while self._due:
            self._run(self._queues[self._due.popleft()][0])
            if self._due:
                yield
        self._beginning = False

    def _drop(self) -> None:
        dropped, self.waiting = self.waiting + 1, 0
        for key, queue in self._queues.items():
            self._queues[key] = deque([queue[0]])
        self._dropped(dropped)


class RequestArrivals:
    """The requests of one kind that arrive in the same turn of the event loop, over all accounts.

    Args:
        limit: maximum number that is served; 0: `REQUEST_QUEUE_LIMIT`. The others are dropped without an answer.
        call_soon: calls at the end of the turn.
        dropped: called at the end of a turn with the number of requests that were dropped.
    """

    def __init__(
        self, limit: int, call_soon: Callable[[Callable[[], None]], None], dropped: Callable[[int], None]
    ) -> None:
        self._limit = limit or REQUEST_QUEUE_LIMIT
        self._call_soon, self._dropped = call_soon, dropped
        self._arrived = self._lost = 0
        self._scheduled = False

    @property
    def left(self) -> int:
        """Return how many more requests of this turn are served."""
        return max(self._limit - self._arrived, 0)

    def take(self, number: int = 1) -> bool:
        """Count requests; return False if the last one is to be dropped."""
        self._arrived += number
        if self._arrived > self._limit:
            self.drop()
            return False
        self._schedule()
        return True

    def drop(self) -> None:
        """Count a request that is dropped, also one that arrived earlier."""
        self._lost += 1
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._over)

    def _over(self) -> None:
        lost, self._arrived, self._lost, self._scheduled = self._lost, 0, 0, False
        if lost:
            self._dropped(lost)
