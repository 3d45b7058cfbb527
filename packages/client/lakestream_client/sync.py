"""The client for callers without an event loop.

Belongs here: the operations of client.py, past.py, bucket.py and sql.py as blocking calls, driven in a thread of its
own. Each is one line that takes over signature and documentation.

    from lakestream_client.sync import connect

    with connect("nats://127.0.0.1:4222") as client:
        print(client.to_arrow("ORDERS").num_rows)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from lakestream.loop_thread import LoopThread
from lakestream_client import bucket, client, past, sql

if TYPE_CHECKING:
    from nats.js import JetStreamContext

A = TypeVar("A")
D = TypeVar("D", bound="Driven[Any]")
P = ParamSpec("P")
R = TypeVar("R")


class Driven(Generic[A]):
    """An object whose methods drive those of an asynchronous one.

    Args:
        driven: the asynchronous object.
        thread: its event loop.
    """

    def __init__(self, driven: A, thread: LoopThread) -> None:
        self.driven, self.thread = driven, thread


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Driven[A], P], R]:
    """Return a method that waits for the result of an asynchronous one."""

    def call(self: Driven[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.thread.run(method(self.driven, *args, **kwargs))

    update_wrapper(call, method)
    return call


def iterating(
    method: Callable[Concatenate[A, P], AsyncIterator[R]],
) -> Callable[Concatenate[Driven[A], P], Iterator[R]]:
    """Return a method that yields what an asynchronous one yields."""

    def call(self: Driven[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        items = cast(AsyncGenerator[R, None], method(self.driven, *args, **kwargs))

        async def following() -> tuple[R] | None:
            return (item,) if (item := await anext(items, _END)) is not _END else None

        async def end() -> None:
            async with aclosing(items):
                pass

        try:
            while (found := self.thread.run(following())) is not None:
                yield found[0]
        finally:
            self.thread.run(end())

    update_wrapper(call, method)
    return call


def returning(
    kind: Callable[[R, LoopThread], D], method: Callable[Concatenate[A, P], R]
) -> Callable[Concatenate[Driven[A], P], D]:
    """Return a method that returns the driven form of what another one returns."""

    def call(self: Driven[A], /, *args: P.args, **kwargs: P.kwargs) -> D:
        return kind(method(self.driven, *args, **kwargs), self.thread)

    update_wrapper(call, method)
    return call


def returning_awaited(
    kind: Callable[[R, LoopThread], D], method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]
) -> Callable[Concatenate[Driven[A], P], D]:
    """Return a method that waits for the result of an asynchronous one and returns its driven form."""

    def call(self: Driven[A], /, *args: P.args, **kwargs: P.kwargs) -> D:
        return kind(self.thread.run(method(self.driven, *args, **kwargs)), self.thread)

    update_wrapper(call, method)
    return call


_END: Any = object()


class SyncAsOf(Driven[past.AsOf]):
    """A stream at one point; see `past.SyncAsOf`."""

    get = blocking(past.AsOf.get)
    last = iterating(past.AsOf.last)


class SyncBucketAt(Driven[bucket.BucketAt]):
    """A bucket at one point, read-only; see `bucket.SyncBucketAt`."""

    get = blocking(bucket.BucketAt.get)
    items = iterating(bucket.BucketAt.items)
    keys = blocking(bucket.BucketAt.keys)


class SyncBucket(Driven[bucket.Bucket]):
    """A bucket by its name; see `bucket.Bucket`."""

    at = returning(SyncBucketAt, bucket.Bucket.at)
    history = iterating(bucket.Bucket.history)


class SyncAnswer(Driven[sql.Answer]):
    """The result of a query; see `sql.Answer`, which `driven` is."""

    bodies = iterating(sql.Answer.bodies)
    batches = iterating(sql.Answer.batches)
    to_arrow = blocking(sql.Answer.to_arrow)
    cancel = blocking(sql.Answer.cancel)


class SyncClient(Driven[client.Client]):
    """A connection; see `client.Client`."""

    as_of = returning(SyncAsOf, client.Client.as_of)
    history = iterating(client.Client.history)
    bucket = returning(SyncBucket, client.Client.bucket)
    scan = blocking(client.Client.scan)
    to_arrow = blocking(client.Client.to_arrow)
    to_polars = blocking(client.Client.to_polars)
    to_pandas = blocking(client.Client.to_pandas)
    sql = returning_awaited(SyncAnswer, client.Client.sql)

    @property
    def jetstream(self) -> JetStreamContext:
        """Return nats-py's JetStream context; call its methods by `run`."""
        return self.driven.jetstream

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine of nats-py, such as `client.jetstream.publish(…)`, and return its result."""
        return self.thread.run(work)

    def close(self) -> None:
        """Close the connection and end its thread. Readers that `scan` returned go on."""
        try:
            self.thread.run(self.driven.close())
        finally:
            self.thread.close()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connected(method: Callable[P, Coroutine[Any, Any, client.Client]]) -> Callable[P, SyncClient]:
    def call(*args: P.args, **kwargs: P.kwargs) -> SyncClient:
        thread = LoopThread("lakestream client")
        try:
            return SyncClient(thread.run(method(*args, **kwargs)), thread)
        except BaseException:
            thread.close()
            raise

    update_wrapper(call, method)
    return call


connect = _connected(client.connect)
