"""Client of the flush request: have the server stage what it has.

Belongs here: asking the servers of a lake (lakestream/lake/flush.py), and checking the answer. Any node of a cluster
can be asked: the stream's leader answers. Everything is synchronous: nats-py runs in a thread of its own, so callers
need no event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from lakestream.lake.errors import LakeError
from lakestream.lake.flush import (
    FLUSH,
    FLUSHED,
    LAST,
    NOT_FOUND,
    FlushAnswer,
    ServerCredentials,
    named_servers,
    plain_url,
)
from lakestream.lake.storage import lake as lakes
from lakestream.lake.storage import paths
from lakestream.lake.storage.storage import Storage
from lakestream.loop_thread import LoopThread
from lakestream.protocol.decoding import DECODE_ERRORS

if TYPE_CHECKING:
    from nats.aio.client import Client

    from lakestream.lake.last_messages import LastPage

DEFAULT_TIMEOUT_S = 5.0
"""Timeout of connecting and flushing together."""
NEXT_SERVER_S = 0.5
"""Time without an answer after which the next server is asked too."""
T = TypeVar("T")


class FlushFailed(LakeError):
    """Raised when no server could be asked, or the server did not stage the stream."""


class StreamNotFound(LakeError):
    """Raised when there is no such stream in the lake."""

    def __init__(self, stream: str, where: str) -> None:
        super().__init__(f"there is no stream {stream} in {where}")


def connect(
    storage: Storage, account: str, server: str | None, credentials: ServerCredentials | None
) -> Flusher | None:
    """Return a connection to the server at a URL; without one to those that the lake names, None if it names none."""
    if server is not None:
        return Flusher([server.split(",")], credentials)
    return lake_flusher(storage, account, credentials)


def asked(
    storage: Storage,
    stream: str,
    account: str,
    server: str | None,
    timeout: float,
    credentials: ServerCredentials | None,
    flusher: Flusher | None = None,
) -> tuple[FlushAnswer | None, str]:
    """Have a server stage what it has of a stream; return (its answer, the reason why there is none).

    Args:
        server: its URL; by default one that the lake names.
        flusher: a connection to use and leave open.

    Raises:
        StreamNotFound: the server does not know the stream.
        FlushFailed: `server` or `flusher` was given and did not answer, or a server refused.
    """
    connection = flusher or connect(storage, account, server, credentials)
    if connection is None:
        return None, f"no server has said in {paths.servers(storage.root)} that it is running"
    try:
        answer = connection.flush(stream, timeout)
    except FlushFailed as error:
        if server is not None or flusher is not None:
            raise
        return None, str(error)
    finally:
        if connection is not flusher:
            connection.close()
    if other := other_account(account, answer):
        raise FlushFailed(other)
    if answer.error is not None and answer.error.err_code == NOT_FOUND:
        raise StreamNotFound(stream, f"the server of the lake at {storage.root}")
    if answer.error is not None:
        raise FlushFailed(answer.error.description)
    return answer, ""


def lake_flusher(storage: Storage, account: str, credentials: ServerCredentials | None = None) -> Flusher | None:
    """Return a connection to the servers that the lake names; None when it names none.

    It takes the first answer of a server of this lake for a stream of `account`.
    """
    servers = named_servers(storage)
    if not servers:
        return None
    lake_id = lakes.read_id(storage)
    known = {server.server_id for server in servers}

    def judge(answer: FlushAnswer) -> str:
        if other := other_account(account, answer):
            return other
        if lake_id and answer.lake_id:
            return "" if answer.lake_id == lake_id else "it has another lake"
        same = answer.server_id in known or (answer.lake and paths.normalise(answer.lake) == storage.root)
        return "" if same else "another server than the lake's answers"

    return Flusher([server.urls for server in servers], credentials, judge)


def other_account(account: str, answer: FlushAnswer) -> str:
    """Return the reason why an answer is not about a stream of `account`, or "".

    A server that is asked by a user of another account answers for that account's stream of the name.
    """
    if answer.account in ("", account):
        return ""
    return f"the server was asked by a user of account {answer.account}; log in as one of account {account}"


class Flusher:
    """A connection to one of several servers, opened on first use and kept. Not for use by two threads at once.

    Args:
        servers: the URLs of each server. They are tried in this order; the next one when the one before has failed, or
            has not answered within `NEXT_SERVER_S`.
        credentials: for logging in.
        judge: returns the reason why an answer cannot be used, or "".
    """

    def __init__(
        self,
        servers: Sequence[Sequence[str]],
        credentials: ServerCredentials | None = None,
        judge: Callable[[FlushAnswer], str] = lambda answer: "",
    ) -> None:
        self._servers = [[url if "://" in url else f"nats://{url}" for url in urls] for urls in servers]
        self._credentials = credentials or ServerCredentials()
        self._judge = judge
        self._client: Client | None = None
        self._thread: LoopThread | None = None

    def flush(self, stream: str, timeout: float = DEFAULT_TIMEOUT_S) -> FlushAnswer:
        """Have the server stage what it has of a stream; the answer may be an error of the server.

        Raises:
            FlushFailed: no server gave a usable answer in time.
        """
        try:
            return self._run(self._flush(stream, timeout), timeout)
        except TimeoutError:
            raise FlushFailed(f"{self._where()} does not flush stream {stream}: no answer in {timeout} s") from None

    def last(self, stream: str, filters: Sequence[str], timeout: float = DEFAULT_TIMEOUT_S) -> list[LastPage]:
        """Return the last message of each subject, as the server's index has it; without a whole answer, what there is.

        Raises:
            FlushFailed: no server gave a usable answer in time.
        """
        try:
            if self._client is None or not self._client.is_connected:
                self.flush(stream, timeout)  # finds the server
            return self._run(self._last(stream, filters), timeout)
        except TimeoutError:
            raise FlushFailed(f"{self._where()} does not list the subjects of stream {stream} in {timeout} s") from None

    def close(self) -> None:
        """Close the connection and its thread."""
        if self._thread is None:
            return
        with contextlib.suppress(Exception):
            self._run(self._end(), 2.0)
        self._thread.close()
        self._thread = None

    def __enter__(self) -> Flusher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _where(self) -> str:
        several = "the server" if len(self._servers) == 1 else "none of the servers"
        return f"{several} at {', '.join(plain_url(url) for urls in self._servers for url in urls)}"

    def _run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        if self._thread is None:
            self._thread = LoopThread("lakestream-flush")
        # A little longer than the inner timeout, which gives the better reason.
        return self._thread.submit(work).result(timeout + 1)

    async def _flush(self, stream: str, timeout: float) -> FlushAnswer:
        """Ask the server of the last answer, then all of them. Raises FlushFailed."""
        async with asyncio.timeout(timeout):
            if self._client is not None and self._client.is_connected:
                with contextlib.suppress(FlushFailed):
                    return await self._ask(self._client, stream, timeout / 2)  # leave time for the others
            await self._disconnect()
            return await self._first(stream, timeout)

    async def _last(self, stream: str, filters: Sequence[str]) -> list[LastPage]:
        from lakestream.lake.last_messages import PAGE, LastPage, LastRequest

        client, pages = self._client, list[LastPage]()
        if client is None:
            return pages
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        try:
            await client.publish(f"{LAST}{stream}", msgspec.json.encode(LastRequest(list(filters))), reply=inbox)
            async for message in subscription.messages:
                if not message.data:  # no responders
                    break
                pages.append(PAGE.decode(message.data))
                if pages[-1].done:
                    break
        except DECODE_ERRORS:
            pages.clear()
        finally:
            await subscription.unsubscribe()
        return pages

    async def _first(self, stream: str, timeout: float) -> FlushAnswer:
        """Return the first usable answer, and keep its connection."""
        waiting = list(self._servers)
        running: set[asyncio.Task[tuple[Client, FlushAnswer]]] = set()
        answers: list[tuple[Client, FlushAnswer]] = []
        failures: list[str] = []
        try:
            while waiting or running:
                if waiting:
                    running.add(asyncio.create_task(self._try(waiting.pop(0), stream, timeout)))
                pause = NEXT_SERVER_S if waiting else None
                done, running = await asyncio.wait(running, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                failures += [str(error) for task in done if (error := task.exception()) is not None]
                answers += [task.result() for task in done if task.exception() is None]
                if not all(answer.is_refusal for _, answer in answers):  # else another server may have the stream
                    break
            if not answers:
                raise FlushFailed("; ".join(dict.fromkeys(failures)))
            chosen = next((each for each in answers if not each[1].is_refusal), answers[0])
            answers.remove(chosen)
            self._client = chosen[0]
            return chosen[1]
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for client, _ in answers:
                with contextlib.suppress(Exception):
                    await client.close()

    async def _try(self, urls: Sequence[str], stream: str, timeout: float) -> tuple[Client, FlushAnswer]:
        """Connect to one server and ask it. Raises FlushFailed."""
        from lakestream.lazy_modules import postpone

        postpone("aiohttp")  # which only WebSockets need, and takes most of the time
        from nats.aio.client import Client

        client = Client()
        try:
            await self._connect(client, urls, timeout)
            return client, await self._ask(client, stream, timeout)
        except BaseException as error:
            with contextlib.suppress(Exception):
                await client.close()
            if isinstance(error, FlushFailed | asyncio.CancelledError):
                raise
            raise self._failed(urls, stream, error) from None

    async def _ask(self, client: Client, stream: str, timeout: float) -> FlushAnswer:
        """Ask over a connection. Raises FlushFailed also for an answer that cannot be used."""
        where = [client.connected_url.geturl() if client.connected_url else "?"]
        try:
            body = (await client.request(f"{FLUSH}{stream}", b"", timeout=timeout)).data
            answer = FLUSHED.decode(body)
        except Exception as error:
            raise self._failed(where, stream, error) from None
        reason = self._judge(answer)
        if not reason and answer.error is not None and not answer.is_refusal:
            reason = answer.error.description
        if reason:
            raise self._failed(where, stream, FlushFailed(reason))
        return answer

    @staticmethod
    def _failed(urls: Sequence[str], stream: str, error: BaseException) -> FlushFailed:
        where = f"the server at {', '.join(map(plain_url, urls))}"
        if isinstance(error, DECODE_ERRORS):
            return FlushFailed(f"{where} answered a flush of {stream} with something else: {error}")
        return FlushFailed(f"{where} does not flush stream {stream}: {str(error) or type(error).__name__}")

    async def _connect(self, client: Client, urls: Sequence[str], timeout: float) -> None:
        failures: list[Exception] = []

        async def failed(error: Exception) -> None:
            failures.append(error)

        try:
            await client.connect(
                list(urls),
                name="lakestream reader",
                allow_reconnect=False,
                max_reconnect_attempts=1,  # nats-py tries the first connection like any other
                reconnect_time_wait=0,
                connect_timeout=max(1, int(timeout)),
                error_cb=failed,
                **self._credentials.arguments(),
            )
        except Exception as error:
            raise failures[-1] if failures else error from None

    async def _end(self) -> None:
        """Disconnect, and end the requests that were given up."""
        await self._disconnect()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
