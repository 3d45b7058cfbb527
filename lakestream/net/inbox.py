"""The input of a client connection.

Belongs here: commands in the order in which they came: parsed, handled while the turn of the event loop has time for
them, and kept while it has not or while a decision about the client is awaited; and one publish from each of many
clients, which are handled together. The effect of a command is connection.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from lakestream.native import parse_run
from lakestream.net.incomplete import COUNTED_BYTES
from lakestream.net.interest.subscription import Congested
from lakestream.net.tracer import Tracer
from lakestream.net.turn import Turn
from lakestream.ports import ClientInfo
from lakestream.protocol.commands import Command, Single
from lakestream.protocol.parser import Parser
from lakestream.protocol.publishes import WIDTH, Apart, Publishes, single

SMALL_READ_BYTES = 1024
"""Reads up to this size (1 KiB) never wait for another turn: they are not those of a flood."""

COMMANDS = 4
"""Commands that are handled between two looks at the time; a run of publishes is one."""

FEW = 3
"""Fewer reads than this are handled one by one, which costs less."""

TRIES = 4
"""Runs of one turn: a read with something else ends one. Those behind the last are handled one by one, so that none is
parsed again and again."""

REST = 256
"""Reads that are handled at once after those of a turn were nothing for streams: gathering them saves nothing."""

VERBS = (b"PUB ", b"HPUB ")
"""Beginnings of reads that may be a publish."""


class InputReader(Protocol):
    """A client connection, as its input uses it."""

    close_reason: str
    tracer: Tracer | None

    def publish(self, command: Single) -> None:
        """Publish a message."""

    def publish_run(self, run: Publishes) -> int:
        """Publish messages while the turn lasts; return the first one that was not published, else their number."""

    def control(self, command: Command) -> None:
        """Handle any other command."""

    def begin_reading(self) -> None:
        """Gather what commands bring the client."""

    def end_reading(self) -> None:
        """Write what they brought."""

    def pause(self) -> None:
        """Read no more for now."""

    def resume(self) -> None:
        """Read again, unless something else holds the connection up."""

    def stall(self, receiver: Congested) -> None:
        """Stop reading until a receiver has drained."""

    def holds(self, size: int) -> None:
        """Count the bytes of an incomplete message; 0: none."""


class Inbox:
    """The commands of one client, which each call names: it would be a reference cycle otherwise.

    Args:
        turn: the turn of the event loop that all clients share.
    """

    def __init__(self, parser: Parser, turn: Turn) -> None:
        self._parser, self._turn = parser, turn
        self._held: list[Command | Publishes] | None = None
        """Commands behind one whose decision is awaited; None: there is none."""
        self._begun = False
        """The client has sent a small part of a command, and is read on."""
        self._partly = False
        """The same, and is read again in a later turn."""
        self._late: list[Command | Publishes] | None = None
        """Commands that wait for another turn of the event loop; None: there are none."""
        self._unread: list[bytes] = []
        """Bytes behind `_held`, `_late` or what was parsed that the transport had read already."""
        self._counted = False  # an incomplete message is counted
        self._ended = False
        turn.joined()

    @property
    def waits(self) -> bool:
        """Return True while commands wait: the client is not to be read."""
        return self._held is not None or self._late is not None or self._partly

    @property
    def is_free(self) -> bool:
        """Return True if nothing of an earlier read is left, and any small publish is within the client's limits."""
        if self._late is not None or self._held is not None or self._unread or self._begun or self._partly:
            return False
        parser = self._parser
        roomy = parser.max_payload >= SMALL_READ_BYTES and parser.max_control_line >= SMALL_READ_BYTES
        return roomy and parser.headers and not parser.held

    def publish(self, reader: InputReader, message: Single) -> None:
        """Handle a publish that was parsed with those of others, where this `is_free`."""
        self._turn.entered(reader)
        self._handle(reader, (message,), message.content_bytes)

    def feed(self, reader: InputReader, data: bytes) -> None:
        """Handle the commands that these bytes complete, or keep the bytes."""
        self._turn.entered(reader)
        if self._late is not None or self._held is not None or self._unread:
            self._unread.append(data)
        elif len(data) > SMALL_READ_BYTES and self._turn.is_over():
            self._unread.append(data)
            self._wait_for_turn(reader, [])
        else:
            whole = self._take(reader, data)
            if self.waits or reader.close_reason:
                return
            if self._unread:
                self._wait_for_turn(reader, [])
            elif not whole and len(data) <= SMALL_READ_BYTES and not self._begun:
                self._begin(reader)

    def end(self, reader: InputReader) -> None:
        """Forget an incomplete message: the connection is over. Idempotent."""
        self._complete()
        if not self._ended:
            self._ended = True
            self._turn.left(reader)
        if self._counted:
            self._counted = False
            reader.holds(0)
            self._parser.end()

    # ------------------------------------------------------------------ parts of commands
    def _begin(self, reader: InputReader) -> None:
        """Read the rest of a command on, or in a later turn."""
        self._begun = self._turn.begin()
        if not self._begun:
            self._partly = True
            reader.pause()
            self._turn.wait_for_more(lambda: self._read_on(reader))

    def _complete(self) -> None:
        if self._begun:
            self._begun = False
            self._turn.complete()

    def _read_on(self, reader: InputReader) -> None:
        self._partly = False
        if not reader.close_reason:
            reader.resume()

    # ------------------------------------------------------------------ decisions
    def hold(self, reader: InputReader) -> None:
        """Keep the commands that follow until `decided`."""
        self._held = []
        reader.pause()

    def decided(self, reader: InputReader, decide: Callable[[], None]) -> None:
        """Call `decide`, then handle what was kept, unless another decision is awaited now."""
        held, self._held = self._held or [], None
        if reader.close_reason:
            return
        decide()
        if self._held is not None:
            self._held.extend(held)
        elif not reader.close_reason:
            self._handle(reader, held, 0)
            if self._unread and not self.waits:
                self._wait_for_turn(reader, [])
            reader.resume()

    # ------------------------------------------------------------------ commands
    def _take(self, reader: InputReader, data: bytes) -> bool:
        """Handle the commands that these bytes complete; return False if there are none."""
        commands, rest = self._parser.feed(data), self._parser.rest
        if self._begun and commands:
            self._complete()
        if rest:
            self._unread.insert(0, rest)
        if reader.tracer is not None:
            reader.tracer.inbound(single(commands))
        self._handle(reader, commands, len(data) - len(rest))
        held = self._parser.held
        if (held > COUNTED_BYTES or self._counted) and not reader.close_reason:
            self._counted = held > COUNTED_BYTES
            reader.holds(held if self._counted else 0)
        return bool(commands)

    def _handle(self, reader: InputReader, commands: Sequence[Command | Publishes], size: int) -> None:
        """Handle commands, then write what they bring the client. Those for which this turn has no time are kept for
        later ones."""
        turn = self._turn
        turn.overrun = None
        rest, total = iter(commands), len(commands)
        reader.begin_reading()
        try:
            for number, command in enumerate(rest, 1):
                if type(command) is Single:
                    reader.publish(command)
                elif type(command) is Publishes:
                    stopped = reader.publish_run(command)
                    if stopped < len(command) and not reader.close_reason:
                        self._wait_for_turn(reader, [command.rest(stopped), *rest])
                else:
                    assert not isinstance(command, Publishes)
                    reader.control(command)
                    if self._held is not None:
                        self._held.extend(rest)
                if reader.close_reason:
                    return
                if not number % COMMANDS and number < total and self._late is None and turn.is_over():
                    self._wait_for_turn(reader, list(rest))
            turn.read(size)
            if turn.overrun is not None:
                reader.stall(turn.overrun)
        finally:
            reader.end_reading()

    def _wait_for_turn(self, reader: InputReader, commands: list[Command | Publishes]) -> None:
        """Read no more until a later turn has handled these commands, and what was read behind them."""
        reader.pause()
        self._late = commands
        self._turn.wait(lambda: self._go_on(reader))

    def _go_on(self, reader: InputReader) -> None:
        """Handle what has waited for this turn."""
        commands, self._late = self._late, None
        if reader.close_reason or commands is None:
            self._unread.clear()
            return
        if commands:
            self._handle(reader, commands, 0)
        while self._unread and not self.waits and not reader.close_reason:
            if self._turn.is_over():
                self._wait_for_turn(reader, [])
            else:
                self._take(reader, self._unread.pop(0))
        reader.resume()


class SharingHub(Protocol):
    """The hub of an account."""

    def share(self, run: Publishes, begin: int, end: int, sender: Callable[[int], ClientInfo]) -> int:
        """Hand messages to the streams that are their only receivers; return the first one that has others."""

    def may_trace(self, run: Publishes) -> bool:
        """Return True if some of the messages may be traced."""


class GatheredReader(Protocol):
    """A client connection."""

    client: ClientInfo

    @property
    def joins(self) -> SharingHub | None:
        """Return the hub that may take its next publish with those of others; None: it is handled by itself."""

    def feed(self, read: bytes | Single) -> None:
        """Handle a read, or the publish that it is, by itself."""

    def published(self, size: int) -> None:
        """Count a message that was handed to a stream."""


class Gathering:
    """Reads that wait for the end of the turn's reads.

    Args:
        apart: which publishes are handled one by one.
        call_first: calls back after the reads of a turn; None: nothing is gathered.
    """

    def __init__(self, apart: Apart, call_first: Callable[[Callable[[], None]], object] | None = None) -> None:
        self._apart, self._first = apart, call_first
        self._reads: list[tuple[GatheredReader, bytes]] = []
        self._rest = 0

    def read(self, reader: GatheredReader, data: bytes) -> None:
        """Handle a read, at once or with others."""
        if self._first is None or len(data) > SMALL_READ_BYTES or not data.startswith(VERBS):
            if self._reads:
                self.settle()
            reader.feed(data)
        elif self._rest:  # nothing is gathered
            self._rest -= 1
            reader.feed(data)
        else:
            if not self._reads:
                self._first(self.settle)
            self._reads.append((reader, data))

    def settle(self) -> None:
        """Handle what is gathered."""
        reads, self._reads = self._reads, []
        begin, count, tries = 0, len(reads), TRIES
        self._rest = REST if count >= FEW else 0
        while begin < count:
            end, hub = begin + 1, reads[begin][0].joins if tries and begin + FEW <= count else None
            while hub is not None and end < count and reads[end][0].joins is hub:
                end += 1
            if hub is not None and end >= begin + FEW:
                tries -= 1
                begin += self._publish(hub, reads[begin:end])
            if begin < end:
                reader, data = reads[begin]
                reader.feed(data)
                begin += 1

    def _publish(self, hub: SharingHub, reads: Sequence[tuple[GatheredReader, bytes]]) -> int:
        """Handle the first reads, as far as each is one publish; return their number."""
        buf = b"".join([data for _, data in reads])
        found = parse_run(buf, 0, SMALL_READ_BYTES, SMALL_READ_BYTES, True, *self._apart)
        if found is None or hub.may_trace(run := Publishes(buf, *found[1:])):
            return 0
        at = count = end = 0
        for (_, data), payload, size in zip(reads, run.places[2::WIDTH], run.places[3::WIDTH], strict=False):
            end += len(data)
            if payload + size + 2 != end:
                break
            count += 1
        others = 1
        while at < count:
            stop = hub.share(run, at, count, lambda at: reads[at][0].client)
            for (reader, _), size in zip(reads[at:stop], run.sizes(at, stop), strict=True):
                reader.published(size)
            if stop > at:
                others, self._rest = 1, 0
            # What has other receivers is handled by itself, and twice as many messages each time that it follows such.
            at, others = min(stop + others, count), others * 2
            for (reader, _), message in zip(reads[stop:at], run.messages(stop, at), strict=True):
                reader.feed(message)
        return count
