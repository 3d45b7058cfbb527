"""Putting messages into a stream, each once.

Belongs here: batches of an import on their way to the server, and going on after failures of the connection or the
server. The requests are served in account/api/transfer.py.
"""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections import deque
from collections.abc import Iterable

import msgspec

from lakestream.cli.link import PREFIX, ClientLink, TransferFailed
from lakestream.log.format.record import Record, encode_record, record_length

PATIENCE_S = 60.0
"""Time for which an import retries while nothing gets through."""
WINDOW = 8
"""Batches in flight."""
BATCH_BYTES = 256 * 1024
BATCH_MSGS = 4096
LONGEST_ALONE = 3000
"""Longest subject of a message that leaves no room in a batch; the line of its request has up to 4096 bytes."""


class RowRefused(TransferFailed):
    """Raised when the stream rejects a message. `row`: its number in the source."""

    def __init__(self, row: int, reason: str) -> None:
        self.row = row
        super().__init__(f"row {row}: the server refuses it: {reason}")


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
            return self._link.submit(f"{PREFIX}IMPORT.{self._stream}", body)
        (one,) = messages
        subject = f"{PREFIX}IMPORT1.{self._stream}.{one.seq}.{one.time_ns}.{len(one.header)}."
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
        self._link.submit(f"{PREFIX}IMPORT.{self._stream}", b"")  # what follows goes on from the sequence just read
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
