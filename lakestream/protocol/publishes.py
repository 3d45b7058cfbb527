"""Publishes in columns.

Belongs here: consecutive plain PUB and HPUB commands of one read as columns over the read buffer, so that nothing is
made for a single message, and their messages one by one for whatever has to look at them. `lakestream.native` fills the
columns, and encodes and frames from them. Between nodes a run travels as its commands (`commands`, `run_of`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import add
from typing import ClassVar, NamedTuple, final

import msgspec

from lakestream.native import choose_run, frame_acks, frame_run, header_values, parse_run
from lakestream.protocol.commands import Command, Single

WIDTH = 4
"""Numbers of a message in `Publishes.places`."""

STREAM_MARK = ord("$")
"""A byte of every reply subject that tells a stream how to store the message (`.$FI` of fast ingest)."""

MAX_REFUSED = 8
"""Messages of a run that a receiver looks at by themselves, before it is offered none together any more."""

_UNLIMITED = 1 << 30
"""Limit in bytes for what a node has already accepted from a client under its own limits."""


class Apart(NamedTuple):
    """Signs of a message that is in no run, since its receiver has to look at it by itself.

    Attributes:
        subjects: how its subject begins; b"": no subject sets it apart.
        replies: how its reply begins; b"": no beginning of a reply does.
        mark: a byte of its reply; 0: none does.
        header: the name of a `Nats-` header; b"": none sets it apart.
    """

    subjects: bytes = b""
    replies: bytes = b""
    mark: int = 0
    header: bytes = b""


NOTHING_APART = Apart()


@final
class Publishes(msgspec.Struct, gc=False):
    """Consecutive PUB and HPUB commands.

    Attributes:
        buf: the read buffer that they lie in.
        subjects: of each; a subject that repeats is one object.
        starts: positions of the messages whose subject differs from that of the message before; the first is 0.
        places: WIDTH numbers for each: offset and length of the reply, offset and length of the payload.
        content_bytes: sum of the lengths of header blocks and payloads.
        heads: length of the header block of each, which lies before its payload; empty if no message has one.
        own: names of the headers of the protocol (`Nats-…`) that messages have.
        renamed: the commands in `buf` are others: with other subjects, or with more between them.
        one_by_one: a receiver looks at each message by itself.
        refused: messages that a receiver has looked at by themselves.
        columns: see `values`.
    """

    to: ClassVar[bytes] = b""
    buf: bytes
    subjects: list[bytes]
    starts: list[int]
    places: array[int]
    content_bytes: int
    heads: array[int]
    own: list[bytes]
    renamed: bool = False
    one_by_one: bool = False
    refused: int = 0
    columns: dict[bytes, list[bytes | None]] = {}

    def __len__(self) -> int:
        return len(self.subjects)

    def message(self, at: int) -> Single:
        reply, reply_length, payload, length = self.places[at * WIDTH : at * WIDTH + WIDTH]
        buf, header = self.buf, payload - self.heads[at] if self.heads else payload
        reply_to, block = buf[reply : reply + reply_length], buf[header:payload]
        return Single(self.subjects[at], reply_to, block, buf[payload : payload + length])

    def messages(self, begin: int = 0, end: int | None = None) -> Iterator[Single]:
        """Yield the messages from `begin` to before `end`."""
        return map(self.message, range(begin, len(self) if end is None else end))

    def offer(self, take: Callable[[Publishes, int, int], bool], begin: int, end: int) -> bool:
        """Have a receiver take some messages together. Return False once it wants each by itself, and ask no more."""
        self.one_by_one = self.one_by_one or not take(self, begin, end)
        return not self.one_by_one

    def refuse(self) -> None:
        """Note that a receiver looks at one message by itself. Each time it was offered the messages behind it, too, so
        that soon it is offered no more."""
        self.refused += 1
        self.one_by_one = self.refused >= MAX_REFUSED

    def stop(self, begin: int, end: int) -> int:
        return end

    def frames(self, sid: bytes, begin: int, end: int) -> tuple[bytes, int, int, int]:
        """Return the frames of some messages for a subscription, or for several with a blank between their ids, their
        number, the bytes of their header blocks and payloads, and the message behind them."""
        frames, each = frame_run(self.buf, self.subjects, self.places, self.heads, begin, end, sid), 1 + sid.count(b" ")
        return frames, (end - begin) * each, self.bytes_of(begin, end) * each, end

    def reply(self, at: int) -> bytes:
        """Return the reply subject of a message; b"" if it has none."""
        offset = self.places[at * WIDTH]
        return self.buf[offset : offset + self.places[at * WIDTH + 1]]

    def replies(self, begin: int, end: int) -> list[bytes]:
        """Return the reply subjects of some messages; b"" where there is none."""
        buf, places = self.buf, self.places
        offsets, lengths = places[begin * WIDTH : end * WIDTH : WIDTH], places[begin * WIDTH + 1 : end * WIDTH : WIDTH]
        return [buf[at : at + length] for at, length in zip(offsets, lengths, strict=True)]

    def payloads(self, begin: int, end: int) -> list[bytes]:
        """Return the payloads of some messages."""
        buf, places = self.buf, self.places[begin * WIDTH : end * WIDTH]
        return [buf[at : at + size] for at, size in zip(places[2::WIDTH], places[3::WIDTH], strict=True)]

    def has_replies(self, begin: int, end: int) -> bool:
        """Return True if some of these messages have a reply subject."""
        return any(self.places[begin * WIDTH + 1 : end * WIDTH : WIDTH])

    def bytes_of(self, begin: int, end: int) -> int:
        """Return the sum of the lengths of some header blocks and payloads."""
        if end - begin == len(self):
            return self.content_bytes
        return sum(self.places[begin * WIDTH + 3 : end * WIDTH : WIDTH]) + sum(self.heads[begin:end])

    def sizes(self, begin: int, end: int) -> Iterable[int]:
        """Return the bytes of header block and payload of each of some messages."""
        sizes = self.places[begin * WIDTH + 3 : end * WIDTH : WIDTH]
        return map(add, sizes, self.heads[begin:end]) if self.heads else sizes

    def header(self, at: int) -> bytes:
        """Return the header block of a message; b"" if it has none."""
        end = self.places[at * WIDTH + 2]
        return self.buf[end - self.heads[at] : end] if self.heads else b""

    def values(self, name: bytes) -> list[bytes | None]:
        """Return the value of a header in each message; None where it is missing."""
        found = self.columns.get(name)
        if found is None:
            found = self.columns[name] = header_values(self.buf, self.places, self.heads, 0, len(self), name)
        return found

    def rest(self, begin: int) -> Publishes:
        """Return the messages from `begin` on."""
        places = self.places[begin * WIDTH :]
        starts = [0, *(at - begin for at in self.starts if at > begin)]
        subjects, size, heads = self.subjects[begin:], self.bytes_of(begin, len(self)), self.heads[begin:]
        return Publishes(self.buf, subjects, starts, places, size, heads, self.own, self.renamed, self.one_by_one)

    def chosen(self, positions: list[int]) -> Publishes:
        """Return a copy of some of the messages, ascending: whoever waits for the disk does not keep the others."""
        columns = choose_run(self.buf, self.subjects, self.places, self.heads, positions)
        return Publishes(*columns, self.own, True)

    def with_subjects(self, names: Mapping[bytes, bytes]) -> Publishes:
        """Return the same messages, each under the subject that `names` has for its own."""
        subjects = [names[subject] for subject in self.subjects]
        starts = [at for at in self.starts if not at or subjects[at] != subjects[at - 1]]
        return Publishes(self.buf, subjects, starts, self.places, self.content_bytes, self.heads, self.own, True)

    def commands(self, begin: int, end: int) -> bytes:
        """Return the commands of some messages, as they came if they have their subjects; `begin` must be before
        `end`."""
        if self.renamed:
            return frame_run(self.buf, self.subjects, self.places, self.heads, begin, end, b"")
        places, last = self.places, end * WIDTH - 2
        if begin:
            # Commands of a run lie back to back: each ends two bytes after its payload.
            before = begin * WIDTH - 2
            start = places[before] + places[before + 1] + 2
        else:
            start = self._first()
        return self.buf[start : places[last] + places[last + 1] + 2]

    def _first(self) -> int:
        """Return the offset of the first command."""
        reply, reply_length, payload, _ = self.places[:WIDTH]
        head = self.heads[0] if self.heads else 0
        after_subject = (reply if reply_length else self.buf.rfind(b" ", 0, payload - head) + 1) - 1
        if head and not reply_length:
            after_subject = self.buf.rfind(b" ", 0, after_subject)
        return after_subject - len(self.subjects[0]) - len(b"HPUB " if head else b"PUB ")


@final
class PubAcks(msgspec.Struct, gc=False):
    """The pub acks of some messages of a run: `prefix`, a sequence and `}` to the reply of each.

    Attributes:
        run: the messages.
        begin, end: which of them.
        seq: sequence of message 0 of the run.
        head: replies that are `head` and one more token go to the same subscription; set by the hub.
    """

    to: ClassVar[bytes] = b""
    heads: ClassVar[bool] = False
    run: Publishes
    begin: int
    end: int
    prefix: bytes
    seq: int
    head: bytes = b""

    def __len__(self) -> int:
        return len(self.run)

    def message(self, at: int) -> Single:
        """Return the ack of a message that has a reply."""
        return Single(self.run.reply(at), b"", b"", b"%b%d}" % (self.prefix, self.seq + at))

    def messages(self, begin: int, end: int) -> Iterator[Single]:
        """Yield the acks of the messages from `begin` to before `end` that have a reply."""
        return (self.message(at) for at in range(begin, end) if self.run.reply(at))

    def replies(self, begin: int, end: int) -> list[bytes]:
        """Return nothing: nobody answers an ack."""
        return []

    def stop(self, begin: int, end: int) -> int:
        """Return the first message from `begin` on with another reply, else `end`."""
        for at in range(begin, end):
            reply = self.run.reply(at)
            if reply and not (reply.startswith(self.head) and b"." not in reply[len(self.head) :]):
                return at
        return end

    def frames(self, sid: bytes, begin: int, end: int) -> tuple[bytes, int, int, int]:
        """Return the frames of the acks from `begin` to `stop`, their number, the bytes of their payloads, and
        `stop`. For `sid` b"": PUB commands."""
        run = self.run
        return frame_acks(run.buf, run.places, begin, end, self.head, self.prefix, self.seq + begin, sid)


class BrokenRunError(ValueError):
    """Raised for bytes from another node that are no run of publishes: the connection to it has to begin anew."""


def run_of(commands: bytes, apart: Apart) -> Publishes:
    """Return PUB and HPUB commands in columns. Raise BrokenRunError if they are not those of a run."""
    run = parse_run(commands, 0, _UNLIMITED, _UNLIMITED, True, *apart)
    if run is None or run[0] != len(commands):
        raise BrokenRunError(f"no run of publishes: {commands[run[0] if run is not None else 0 :][:80]!r}")
    return Publishes(commands, *run[1:])


def single(commands: Iterable[Command | Publishes]) -> Iterator[Command]:
    """Yield the commands with each PUB and HPUB by itself."""
    for command in commands:
        if isinstance(command, Publishes):
            yield from command.messages()
        else:
            yield command
