"""Reading a stream that does not allow direct gets, through a consumer.

Belongs here: an ephemeral pull consumer without acks, as pages of messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from itertools import combinations
from typing import TYPE_CHECKING, Any

from lakestream.protocol.instants import rfc3339
from lakestream.protocol.nuid import nuid
from lakestream.protocol.subjects import overlaps
from lakestream_client.errors import NoAnswer, Refused
from lakestream_client.messages import Message
from lakestream_client.scan import CheckedFilters

if TYPE_CHECKING:
    from nats.aio.client import Client as Nats
    from nats.aio.msg import Msg

MAX_FILTERS = 100
"""Subjects that are filters of the consumer; the caller filters by more."""
INACTIVE_S = 60
"""The server deletes the consumer after this time without a request, if the client did not."""


async def consumer_pages(
    connection: Nats, prefix: str, timeout: float, stream: str, asked: CheckedFilters, last: int, page_messages: int
) -> AsyncGenerator[list[Message], None]:
    """Yield a stream's messages through sequence `last`.

    Subjects and start are part of the consumer's configuration; the caller applies the other conditions.

    Raises:
        NoAnswer.
        Refused: the stream takes no such consumer, for example because its retention is workqueue.
    """
    last = min(last, asked.last)
    config: dict[str, Any] = {
        "ack_policy": "none",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": asked.first,
        "inactive_threshold": INACTIVE_S * 1_000_000_000,
        "mem_storage": True,
        "num_replicas": 1,
    }
    subjects = [subject.encode() for subject in asked.subjects or ()]
    if len(subjects) <= MAX_FILTERS and not any(
        overlaps(one, other) for one, other in combinations(subjects, 2)
    ):  # else the server takes no such filters
        config["filter_subjects"] = list(asked.subjects or ())
    if asked.start_ns is not None and asked.first == 1:
        del config["opt_start_seq"]
        config |= {"deliver_policy": "by_start_time", "opt_start_time": rfc3339(asked.start_ns)}
    name = f"lakestream_{nuid()}"
    body = {"stream_name": stream, "config": config, "action": "create"}
    subject = f"{prefix}.CONSUMER.CREATE.{stream}.{name}"
    answer = json.loads((await connection.request(subject, json.dumps(body).encode(), timeout=timeout)).data)
    if error := answer.get("error"):
        raise Refused(stream, int(error.get("code", 0)), f"{error.get('description')} (direct gets are not allowed)")
    pending = int(answer.get("num_pending", 0))
    try:
        while pending > 0:
            found = await _fetch(connection, f"{prefix}.CONSUMER.MSG.NEXT.{stream}.{name}", page_messages, timeout)
            pages = [_of_consumer(message) for message in found]
            pending -= len(pages)
            over = not pages or pages[-1].seq >= last
            if page := [message for message in pages if message.seq <= last]:
                yield page
            if over or (asked.end_ns is not None and pages[-1].time_ns > asked.end_ns):
                return
    finally:
        with contextlib.suppress(Exception):  # a closed connection: the server deletes the consumer by itself
            await connection.request(f"{prefix}.CONSUMER.DELETE.{stream}.{name}", b"", timeout=timeout)


async def _fetch(connection: Nats, subject: str, count: int, timeout: float) -> list[Msg]:
    """Return up to `count` messages, those that the consumer has now."""
    found: list[Msg] = []
    ended = asyncio.Event()

    async def take(message: Msg) -> None:
        if message.reply:
            found.append(message)
        if not message.reply or len(found) == count:
            ended.set()

    inbox = connection.new_inbox()
    answers = await connection.subscribe(inbox, cb=take)
    try:
        await connection.publish(subject, json.dumps({"batch": count, "no_wait": True}).encode(), reply=inbox)
        before = -1
        while not ended.is_set():
            if len(found) == before:
                raise NoAnswer(subject, timeout)
            before = len(found)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), timeout)
    finally:
        with contextlib.suppress(Exception):
            await answers.unsubscribe()
    return found


def _of_consumer(message: Msg) -> Message:
    tokens = message.reply.split(".")
    seq, time_ns = (tokens[5], tokens[7]) if len(tokens) < 11 else (tokens[7], tokens[9])
    headers = {name: [value] for name, value in (message.headers or {}).items()}
    return Message(message.subject, int(seq), int(time_ns), headers or None, message.data)
