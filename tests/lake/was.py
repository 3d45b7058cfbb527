"""Requests of a stream's past state over the socket, and a model that knows it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, NamedTuple

from nats.aio.client import Client

Held = dict[str, tuple[int, bytes]]
"""Sequence and payload of the last message by subject."""


class Refused(Exception):
    """Raised when the answer is an error status."""


class Answer:
    """Answer to a multi_last request."""

    def __init__(self) -> None:
        self.held: Held = {}
        self.through = 0
        self.pending = 0


def rfc3339(at_ns: int) -> str:
    """Return a time in the API's format."""
    seconds, fraction = divmod(at_ns, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{fraction:09d}Z"


async def ask(client: Client, stream: str, **request: Any) -> Answer:
    """Send a multi_last request; status 404 is an empty answer.

    Raises:
        Refused: another error status.
    """
    inbox = client.new_inbox()
    sub = await client.subscribe(inbox)
    request.setdefault("multi_last", [">"])
    await client.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode(), reply=inbox)
    answer = Answer()
    while True:
        message = await sub.next_msg(timeout=60)
        headers = message.headers or {}
        status = headers.get("Status")
        if status is None:
            subject = headers["Nats-Subject"]
            assert subject not in answer.held, "one message a subject"
            answer.held[subject] = (int(headers["Nats-Sequence"]), message.data)
            continue
        await sub.unsubscribe()
        if status == "204":
            answer.through = int(headers["Nats-UpTo-Sequence"])
            answer.pending = int(headers["Nats-Num-Pending"])
        elif status != "404":
            raise Refused(f"{status} {headers.get('Description')}")
        return answer


async def held(client: Client, stream: str, **request: Any) -> Held:
    """Return the messages that `ask` returns."""
    return (await ask(client, stream, **request)).held


class Moment(NamedTuple):
    """Time between two changes, with the stream's state: last sequence, last message per subject, all messages."""

    ns: int
    last: int
    held: Held
    live: dict[int, tuple[str, bytes]]


class Model:
    """Stream in plain Python, with every state that it has been in."""

    def __init__(self, max_msgs: int = -1, per_subject: int = -1) -> None:
        self.max_msgs, self.per_subject = max_msgs, per_subject
        self.live: dict[int, tuple[str, bytes]] = {}
        self.last = 0
        self.at: list[Moment] = []
        self.after: dict[int, Held] = {}
        """State right after each sequence was stored."""

    async def note(self) -> None:
        """Record the present state and time; this machine's clock and the server's are one, to the microsecond."""
        now = time.time_ns()
        while time.time_ns() - now < 20_000:
            await asyncio.sleep(0)
        self.at.append(Moment(time.time_ns(), self.last, self.held(), dict(self.live)))

    def held(self) -> Held:
        return {subject: (seq, data) for seq, (subject, data) in sorted(self.live.items())}

    def publish(self, seq: int, subject: str, data: bytes, rollup: str = "") -> None:
        self.last = seq
        self.live[seq] = (subject, data)
        self.limit()
        for earlier in list(self.live) if rollup else ():
            if earlier < seq and (rollup == "all" or self.live[earlier][0] == subject):
                del self.live[earlier]
        self.after[seq] = self.held()

    def limit(self) -> None:
        if self.per_subject > 0:
            by_subject: dict[str, list[int]] = {}
            for seq, (subject, _) in sorted(self.live.items()):
                by_subject.setdefault(subject, []).append(seq)
            for seqs in by_subject.values():
                for seq in seqs[: max(0, len(seqs) - self.per_subject)]:
                    del self.live[seq]
        if self.max_msgs > 0:
            for seq in sorted(self.live)[: max(0, len(self.live) - self.max_msgs)]:
                del self.live[seq]

    def purge(self, subject: str | None = None, below: int = 0, keep: int = 0) -> None:
        found = [seq for seq in sorted(self.live) if subject in (None, self.live[seq][0])]
        if keep:
            found = found[: max(0, len(found) - keep)]
        for seq in found:
            if not below or seq < below:
                del self.live[seq]
