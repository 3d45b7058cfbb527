"""A stream as it was.

Belongs here: the last messages of subjects at a time or right after a sequence, by direct gets; where they are more
than one answer may have, from the lake.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from lakestream.protocol.instants import instant, rfc3339
from lakestream_client.direct_get import DirectGets
from lakestream_client.errors import (
    BadFilter,
    DirectGetDisabled,
    LakeNotReachable,
    NoSuchMessage,
    NoTimeTravel,
    PastUnavailable,
    Refused,
    TooManySubjects,
)
from lakestream_client.messages import Message

MAX_RESULTS = 1024
"""Maximum number of subjects in the answer to one request, nats-server's limit."""
TIME_TRAVEL = "lakestream.time_travel"
RETENTION = "lakestream.retention"


class PastPoint(msgspec.Struct, frozen=True):
    """A state of a stream: with what was stored at or before `time_ns`, or right after sequence `seq` was stored."""

    time_ns: int = 0
    seq: int = 0

    @classmethod
    def of(cls, time: Any, seq: int | None) -> PastPoint:
        """Return the point for a time, as `instant` takes it, or a sequence. Raises BadFilter."""
        if (time is None) == (seq is None):
            raise BadFilter("give either `time` or `seq`")
        if seq is not None:
            if seq < 1:
                raise BadFilter(f"seq={seq}: sequences begin with 1")
            return cls(seq=seq)
        return cls(time_ns=parsed_time("time", time))

    def __str__(self) -> str:
        return f"sequence {self.seq}" if self.seq else rfc3339(self.time_ns)

    def request(self) -> dict[str, Any]:
        """Return the fields of a direct get. `up_to_time` T is the state before T."""
        return {"up_to_seq": self.seq} if self.seq else {"up_to_time": rfc3339(self.time_ns + 1)}


def parsed_time(name: str, value: Any) -> int:
    """Return a time in ns since the epoch. Raises BadFilter with the argument's name."""
    try:
        return instant(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise BadFilter(f"{name}={value!r}: {error}") from None


async def last_messages(
    gets: DirectGets, stream: str, point: PastPoint, patterns: Sequence[str]
) -> AsyncIterator[Message]:
    """Yield the last message of each matching subject at a point, in sequence order. All pages show one state.

    Raises:
        PastUnavailable, NoSuchStream, DirectGetDisabled, NoAnswer.
        Refused: status 413: there are more than MAX_RESULTS.
    """
    request: dict[str, Any] = {"multi_last": list(patterns), "batch": MAX_RESULTS, **point.request()}
    while True:
        try:
            page = await gets.page(stream, **request)
        except Refused as error:
            if error.status != 500:
                raise
            raise PastUnavailable(stream, str(point), error.reason) from None
        for message in page.messages:
            yield message
        if not page.pending or not page.messages:
            return
        request["seq"] = page.messages[-1].seq + 1


LakeRows = Callable[[str, PastPoint, Sequence[str]], Awaitable[list[Message]]]
"""Read the last message of each matching subject at a point from the lake: stream, point, filters. Raises
LakeNotReachable."""


class AsOf:
    """A stream at one point. Nothing is requested before a method is called.

    Args:
        gets: direct gets of the stream's account.
        keeps_past: returns the reason why the stream's earlier states are not known exactly, or "".
        from_lake: reads the lake.
        stream: the stream's name.
        point: the point.
        exact: raise NoTimeTravel for a stream that does not record removals.
    """

    def __init__(
        self,
        gets: DirectGets,
        keeps_past: Callable[[str], Awaitable[str]],
        from_lake: LakeRows,
        stream: str,
        point: PastPoint,
        exact: bool,
    ) -> None:
        self._gets, self._keeps_past, self._from_lake = gets, keeps_past, from_lake
        self.stream, self.point, self._exact = stream, point, exact
        self._recorded: bool | None = None

    async def get(self, subject: str) -> Message:
        """Return the last message of a subject, or of those that a filter with wildcards matches.

        Raises:
            NoSuchMessage: there was none.
            NoSuchStream, NoTimeTravel, PastUnavailable, TooManySubjects, DirectGetDisabled.
        """
        found = None
        async for message in self.last(subject):
            found = message
        if found is None:
            raise NoSuchMessage(f"stream {self.stream} held no message of {subject} as of {self.point}")
        return found

    async def last(self, subjects: str | Sequence[str] = ">") -> AsyncIterator[Message]:
        """Yield the last message of each subject, in sequence order.

        Args:
            subjects: a subject or filter, or several.

        Raises:
            NoSuchStream, NoTimeTravel, PastUnavailable, TooManySubjects, DirectGetDisabled.
        """
        patterns = [subjects] if isinstance(subjects, str) else list(subjects)
        await self._check()
        try:
            async for message in last_messages(self._gets, self.stream, self.point, patterns):
                yield message
            return
        except Refused as error:
            if error.status != 413:
                raise
        except DirectGetDisabled:
            if not self._recorded:
                raise
        for message in await self._many(patterns):
            yield message

    async def _check(self) -> None:
        if self._recorded is None:
            reason = await self._keeps_past(self.stream)
            if reason and self._exact:
                raise NoTimeTravel(self.stream, reason)
            self._recorded = not reason

    async def _many(self, patterns: Sequence[str]) -> list[Message]:
        """Return the last messages of more subjects than one answer may have."""
        if self._recorded:
            # Subjects may have left the stream since, so it cannot list them.
            try:
                return await self._from_lake(self.stream, self.point, patterns)
            except LakeNotReachable:
                raise TooManySubjects(self.stream, ", ".join(patterns)) from None
        found: dict[str, Message] = {}
        names = await self._subjects(patterns)
        for at in range(0, len(names), MAX_RESULTS):
            some = names[at : at + MAX_RESULTS]
            async for message in last_messages(self._gets, self.stream, self.point, some):
                found[message.subject] = message
        return sorted(found.values(), key=lambda message: message.seq)

    async def _subjects(self, patterns: Sequence[str]) -> list[str]:
        """Return the stream's subjects that match, of messages that it holds now."""
        names: dict[str, None] = {}
        for pattern in patterns:
            offset = 0
            while True:
                info = await self._gets.stream(self.stream, subjects_filter=pattern, offset=offset)
                some = info["state"].get("subjects") or {}
                names.update(dict.fromkeys(some))
                offset += len(some)
                if not some or offset >= int(info.get("total", 0)):
                    break
        return sorted(names)
