"""A connection to a running server, for commands that move messages.

Belongs here: synchronous requests; the client runs in a thread of its own. The requests are served in
account/api/transfer.py.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from lakestream.cli.server_options import Server
from lakestream.cli.terminal import complain
from lakestream.lake.errors import LakeError
from lakestream.lake.flush import plain_url
from lakestream.log.format.record import Record, iter_records
from lakestream.loop_thread import LoopThread

if TYPE_CHECKING:
    from nats.aio.client import Client

INTERRUPTED = 130
CONNECT_S = 5.0
TIMEOUT_S = 30.0
"""Timeout of a request."""
PREFIX = "$LAKE.API."
"""Prefix of the subjects of our own API."""


class TransferFailed(Exception):
    """Raised when the server cannot be reached or rejects a request; the text says why and what to do."""


@contextlib.contextmanager
def exits(stopped: str, *errors: type[Exception]) -> Iterator[None]:
    """Context that turns the errors of a command into a line and an exit code: 1, and 130 after Ctrl-C.

    Args:
        stopped: the line after Ctrl-C.
        errors: further errors whose text is for the user.
    """
    expected: tuple[type[Exception], ...] = (LakeError, TransferFailed, *errors)
    try:
        yield
    except expected as error:
        complain(error)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        if stopped:
            print(stopped, file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


async def connect_once(server: Server, name: str, errors: list[Exception] | None = None) -> Client:
    """Return a connection that is not made again when it breaks.

    Args:
        server: the server.
        name: of the connection.
        errors: gets what the server reports on it, once it is made.

    Raises:
        TransferFailed: the server cannot be reached, or refuses the login.
        BadCredentials: a file of the login cannot be used.
    """
    from nats.aio.client import Client
    from nats.errors import Error

    failures: list[Exception] = []

    async def failed(error: Exception) -> None:
        (failures if errors is None or not client.is_connected else errors).append(error)

    client = Client()
    try:
        async with asyncio.timeout(CONNECT_S):
            await client.connect(
                server.url,
                name=name,
                allow_reconnect=False,
                max_reconnect_attempts=1,  # nats-py tries the first connection like any other
                reconnect_time_wait=0,
                error_cb=failed,
                **server.login.arguments(),
            )
    except (Error, OSError, TimeoutError) as error:
        reason = failures[-1] if failures else error
        raise TransferFailed(
            f"cannot connect to {plain_url(server.url)}: {str(reason) or type(reason).__name__}; name the server with "
            "--server"
        ) from None
    return client


class ClientLink:
    """One connection.

    Args:
        server: the server, or its URL.

    Raises:
        TransferFailed: it cannot be reached.
        BadCredentials: a file of the login cannot be used.
    """

    def __init__(self, server: Server | str) -> None:
        import nats

        if isinstance(server, str):
            server = Server(server)
        self.url = server.url
        login = server.login.arguments()
        self._waiting: set[asyncio.Task[Any]] = set()
        self._thread = LoopThread("nats")

        async def quiet(_: Exception) -> None:
            return  # failures are reported by the requests

        async def lost() -> None:
            for request in list(self._waiting):
                request.cancel()  # its answer will not come on another connection

        async def connect() -> Client:
            return await nats.connect(
                server.url,
                name="lakestream transfer",
                error_cb=quiet,
                disconnected_cb=lost,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.2,
                **login,
            )

        async def first() -> Client:
            # Retry only with a server that was reached before, not with a wrong address.
            await (await connect_once(server, "lakestream transfer")).close()
            return await connect()

        try:
            self._client = self._thread.run(first())
        except TransferFailed:
            self._thread.close()
            raise

    def __enter__(self) -> ClientLink:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._thread.run(self._close())
        finally:
            self._thread.close()

    async def _close(self) -> None:
        """Close the connection, and end the requests that nobody waits for any more."""
        requests = asyncio.all_tasks() - {asyncio.current_task()}
        await self._client.close()
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    @property
    def max_payload(self) -> int:
        """Return the server's maximum message size."""
        return int(self._client.max_payload)

    def submit(self, subject: str, body: bytes, timeout: float = TIMEOUT_S) -> concurrent.futures.Future[bytes]:
        """Send a request; its answer comes in the future."""

        async def ask() -> bytes:
            task = asyncio.current_task()
            assert task is not None
            self._waiting.add(task)
            try:
                return bytes((await self._client.request(subject, body, timeout=timeout)).data)
            finally:
                self._waiting.discard(task)

        return self._thread.submit(ask())

    def request(self, subject: str, body: bytes = b"", timeout: float = TIMEOUT_S) -> bytes:
        """Send a request and wait for the answer. Raises TransferFailed when none comes."""
        from nats.errors import Error, NoRespondersError

        try:
            return self.submit(subject, body, timeout).result()
        except NoRespondersError:
            raise TransferFailed(
                f"nothing answers {subject} at {plain_url(self.url)}: it must be lakestream with JetStream (-js)"
            ) from None
        except (Error, OSError, TimeoutError, concurrent.futures.CancelledError) as error:
            reason = str(error) or "the connection was lost"
            raise TransferFailed(f"{plain_url(self.url)} does not answer: {reason}") from None

    def api(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Make a JetStream API request (subject without `$JS.API.`). Raises TransferFailed with the server's reason."""
        answer: dict[str, Any] = json.loads(
            self.request(f"$JS.API.{subject}", b"" if body is None else json.dumps(body).encode())
        )
        if error := answer.get("error"):
            raise TransferFailed(f"{subject}: {error.get('description', error)}")
        return answer

    def stream(self, name: str) -> dict[str, Any] | None:
        """Return the stream's configuration and state; None when there is none."""
        answer: dict[str, Any] = json.loads(self.request(f"$JS.API.STREAM.INFO.{name}"))
        if error := answer.get("error"):
            if error.get("err_code") == 10059:
                return None
            raise TransferFailed(f"stream {name}: {error.get('description', error)}")
        return answer

    # ------------------------------------------------------------------ export
    def _block(self, stream: str, seq: int, last_seq: int, start_time_ns: int = 0) -> list[Record]:
        body = {"seq": seq, "last_seq": last_seq, "start_time_ns": start_time_ns}
        answer = self.request(f"{PREFIX}EXPORT.{stream}", msgspec.json.encode(body))
        if answer[:1] != b"+":
            raise TransferFailed(f"stream {stream}: {json.loads(answer[1:]).get('description')}")
        return list(iter_records(answer, 1))

    def messages(self, stream: str, first: int, last: int, start_time_ns: int = 0) -> Iterator[list[Record]]:
        """Yield messages of a range of sequences, from a time on, in blocks."""
        while first <= last:
            block = self._block(stream, first, last, start_time_ns)
            if not block:
                return
            yield block
            first, start_time_ns = block[-1].seq + 1, 0

    def message(self, stream: str, seq: int) -> Record | None:
        """Return the message with this sequence."""
        return next(iter(self._block(stream, seq, seq)), None)
