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
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from lakestream.cli.server_options import Server
from lakestream.cli.terminal import complain
from lakestream.lake.errors import LakeError
from lakestream.lake.flush import plain_url
from lakestream.log.format.record import Record, encode_record, iter_records, record_length
from lakestream.loop_thread import LoopThread

if TYPE_CHECKING:
    from nats.aio.client import Client

INTERRUPTED = 130
CONNECT_S = 5.0
TIMEOUT_S = 30.0
"""Timeout of a request."""
PATIENCE_S = 60.0
"""Time for which an import retries while nothing gets through."""
WINDOW = 8
"""Batches in flight."""
BATCH_BYTES = 256 * 1024
BATCH_MSGS = 4096
LONGEST_ALONE = 3000
"""Longest subject of a message that leaves no room in a batch; the line of its request has up to 4096 bytes."""

_PREFIX = "$LAKE.API."


class TransferFailed(Exception):
    """Raised when the server cannot be reached or rejects a request; the text says why and what to do."""


class RowRefused(TransferFailed):
    """Raised when the stream rejects a message. `row`: its number in the source."""

    def __init__(self, row: int, reason: str) -> None:
        self.row = row
        super().__init__(f"row {row}: the server refuses it: {reason}")


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
        answer = self.request(f"{_PREFIX}EXPORT.{stream}", msgspec.json.encode(body))
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


class _Sent(msgspec.Struct):
    """Messages in flight; `rows`: their rows in the source."""

    messages: list[Record]
    rows: list[int]
    answer: concurrent.futures.Future[bytes]


class StreamSender:
    """Puts messages into a stream exactly once, despite failures of the connection or the server.

    Each message is sent with its expected sequence, without which the server rejects it: so sending one twice changes
    nothing, and another publisher is noticed.

    Args:
        last_seq: the stream's last sequence.
    """

    def __init__(self, link: ClientLink, stream: str, last_seq: int) -> None:
        self._link, self._stream = link, stream
        self._next = last_seq + 1
        self._sent: deque[_Sent] = deque()
        self._open: list[Record] = []
        self._rows: list[int] = []
        self._size = 0
        self._limit = min(BATCH_BYTES, link.max_payload)
        self.stored = last_seq
        """The last sequence that the server has confirmed."""

    def put(self, messages: Iterable[Record]) -> None:
        """Send messages; `seq` is the row. Returns while the last of them are on their way.

        Raises:
            RowRefused, TransferFailed.
        """
        for message in messages:
            size = record_length(message.subject, message.header, message.data)
            if (refusal := self._too_large(message, size)) is not None:
                if self._open:
                    self._close_batch()
                raise RowRefused(message.seq, refusal)
            if self._open and (self._size + size > self._limit or len(self._open) == BATCH_MSGS):
                self._close_batch()
            self._open.append(Record(self._next, message.time_ns, message.subject, message.header, message.data))
            self._rows.append(message.seq)
            self._next += 1
            self._size += size

    def _too_large(self, message: Record, size: int) -> str | None:
        """Return the reason for which no request can have a message; None if one can."""
        most = self._link.max_payload
        if len(message.header) + len(message.data) > most:
            return f"it is {size} bytes, and max_payload {most}"
        if size <= most:
            return None
        # The request of a message that goes alone has its subject in the line of the protocol.
        try:
            if len(message.subject) <= LONGEST_ALONE and message.subject.decode():
                return None
        except UnicodeDecodeError:
            pass
        return f"with its subject, which is long or not UTF-8, it is {size} bytes; it needs a max_payload of as many"

    def finish(self) -> None:
        """Wait until everything is stored."""
        if self._open:
            self._close_batch()
        while self._sent:
            self._settle_first()

    def settled(self) -> tuple[int, bool]:
        """Wait for the answers that are under way, after a failure. Return the last sequence that is stored, and True
        if that is certain."""
        from nats.errors import Error

        for sent in self._sent:
            try:
                answer = json.loads(sent.answer.result())
            except (Error, OSError, TimeoutError, ValueError, concurrent.futures.CancelledError):
                return self.stored, False
            if answer.get("error") is not None:
                return sent.messages[0].seq - 1 + int(answer.get("stored", 0)), True
            self.stored = sent.messages[-1].seq
        return self.stored, True

    def _close_batch(self) -> None:
        messages, rows = self._open, self._rows
        self._open, self._rows, self._size = [], [], 0
        while len(self._sent) >= WINDOW:
            self._settle_first()
        self._sent.append(_Sent(messages, rows, self._submit(messages)))

    def _submit(self, messages: list[Record]) -> concurrent.futures.Future[bytes]:
        body = b"".join(
            encode_record(each.seq, each.time_ns, each.subject, each.header, each.data) for each in messages
        )
        if len(body) <= self._link.max_payload:
            return self._link.submit(f"{_PREFIX}IMPORT.{self._stream}", body)
        (one,) = messages
        subject = f"{_PREFIX}IMPORT1.{self._stream}.{one.seq}.{one.time_ns}.{len(one.header)}."
        return self._link.submit(subject + one.subject.decode(), one.header + one.data)

    def _settle_first(self) -> None:
        """Wait for the oldest batch; when it did not get through, find out where to go on, and do."""
        deadline = time.monotonic() + PATIENCE_S
        while self._sent:
            before = self.stored
            trouble = self._outcome(self._sent[0])
            if trouble is None:
                self.stored = self._sent.popleft().messages[-1].seq
                return
            if time.monotonic() > deadline and self.stored == before:
                raise TransferFailed(
                    f"stream {self._stream}: nothing has got through for {PATIENCE_S:.0f} s: {trouble}"
                )
            for each in self._sent:  # in order, so that none can arrive later
                concurrent.futures.wait([each.answer])
            time.sleep(0.2)
            self._go_on()
            if self.stored > before:
                return

    def _outcome(self, sent: _Sent) -> str | None:
        """Return None when a batch is stored, or why it should be retried. Raises RowRefused when it never can be."""
        from nats.errors import Error

        try:
            answer = json.loads(sent.answer.result())
        except (Error, OSError, TimeoutError, concurrent.futures.CancelledError) as error:
            return str(error) or "the connection was lost"
        refusal = answer.get("error")
        if refusal is None:
            return None
        reason = str(refusal.get("description", refusal))
        if answer.get("again") or refusal.get("err_code") == 10167:
            return reason
        row = sent.rows[min(int(answer.get("stored", 0)), len(sent.rows) - 1)]
        raise RowRefused(row, reason)

    def _go_on(self) -> None:
        """Read the stream's last sequence and send what is missing again."""
        try:
            info = self._link.stream(self._stream)
        except TransferFailed:
            return  # not reachable: retried until PATIENCE_S
        if info is None:
            raise TransferFailed(f"stream {self._stream} is gone")
        last = int(info["state"]["last_seq"])
        if last > self.stored:
            self._check_ours(last)
            self.stored = last
        again = [(message, row) for sent in self._sent for message, row in zip(sent.messages, sent.rows, strict=True)]
        again = [(message, row) for message, row in again if message.seq > last]
        self._sent.clear()
        self._link.submit(f"{_PREFIX}IMPORT.{self._stream}", b"")  # what follows goes on from the sequence just read
        for at in range(0, len(again), BATCH_MSGS):
            self._resend(again[at : at + BATCH_MSGS])

    def _resend(self, some: list[tuple[Record, int]]) -> None:
        start, size = 0, 0
        for at, (message, _) in enumerate(some):
            length = record_length(message.subject, message.header, message.data)
            if at > start and size + length > self._limit:
                self._resend_batch(some[start:at])
                start, size = at, 0
            size += length
        self._resend_batch(some[start:])

    def _resend_batch(self, some: list[tuple[Record, int]]) -> None:
        messages = [message for message, _ in some]
        self._sent.append(_Sent(messages, [row for _, row in some], self._submit(messages)))

    def _check_ours(self, last: int) -> None:
        ours = {each.seq: each for sent in self._sent for each in sent.messages}
        blocks = self._link.messages(self._stream, self.stored + 1, last) if last in ours else ()
        if last not in ours or not all(same(ours[each.seq], each) for block in blocks for each in block):
            raise TransferFailed(
                f"stream {self._stream}: somebody else publishes to it (sequence {last}); once they have stopped, "
                "run the same command with --append"
            )


def same(ours: Record, found: Record) -> bool:
    """Return True if a stored message is the one that was sent."""
    fits = ours.time_ns in (0, found.time_ns)
    return fits and (ours.subject, ours.header, ours.data) == (found.subject, found.header, found.data)
