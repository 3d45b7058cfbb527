"""One pull request: how it is read, what may be wrong with it, and what is left of it.

Belongs here: the body of MSG.NEXT (ADR-13, ADR-42) with its rules, and a request while it waits. The queue is
pull.py's, what priority policies make of it priority.py's.
"""

from __future__ import annotations

import re

import msgspec

from lakestream.protocol.api import jsonio
from lakestream.protocol.api.json_syntax import JsonError
from lakestream.protocol.api.jsonio import Duration, Int, Int64
from lakestream.protocol.durations import format_duration
from lakestream.stream.consumer.config import ConsumerConfig

MAX_PRIORITY = 9

_INTEGER = re.compile(rb"^[+-]?\d{1,18}$")


class NextRequest(msgspec.Struct, frozen=True):
    """The JSON body of MSG.NEXT. Durations in ns, `max_bytes` in bytes."""

    batch: Int = 1
    expires: Duration = 0
    max_bytes: Int = 0
    no_wait: bool = False
    idle_heartbeat: Duration = 0
    group: str = ""
    id: str = ""
    min_pending: Int64 = 0
    min_ack_pending: Int64 = 0
    priority: Int = 0


_fast = msgspec.json.Decoder(NextRequest)
_ONE = NextRequest()


class BadRequest(Exception):
    """A pull request that can not be served; the text follows `Bad Request - `."""


def parse_next(body: bytes) -> NextRequest:
    """Read a pull request: nothing, a number, or JSON; any other text asks for one message. Raises BadRequest."""
    body = body.strip()
    if not body:
        return _ONE
    if body[:1] == b"{":
        return _parse_object(body)
    if _INTEGER.match(body):
        return NextRequest(batch=int(body))
    return _ONE


def _parse_object(body: bytes) -> NextRequest:
    try:
        request = _fast.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            request = jsonio.parse(body, NextRequest, " ", strict=False)
        except JsonError as error:
            raise BadRequest(str(error).replace("struct field  .", "struct field .")) from None
    if request.idle_heartbeat > 0 and request.idle_heartbeat * 2 > request.expires:
        raise BadRequest("heartbeat value too large")
    return request


def check_fields(request: NextRequest, policy: str) -> None:
    """Refuse fields that belong to policy overflow elsewhere. Raises BadRequest."""
    if (request.min_pending or request.min_ack_pending) and policy != "overflow":
        raise BadRequest("Not a Overflow Priority consumer")


def check_caps(request: NextRequest, config: ConsumerConfig) -> bytes:
    """The status of a request that asks for more than the consumer allows; b"" when it does not."""
    if 0 < config.max_batch < request.batch:
        return b"409 Exceeded MaxRequestBatch of %d" % config.max_batch
    if 0 < config.max_expires < request.expires:
        return b"409 Exceeded MaxRequestExpires of %b" % format_duration(config.max_expires).encode()
    if 0 < config.max_bytes < request.max_bytes:
        return b"409 Exceeded MaxRequestMaxBytes of %d" % config.max_bytes
    return b""


def check_group(request: NextRequest, body: bytes, config: ConsumerConfig) -> None:
    """Refuse a JSON body that names none of the consumer's groups, or a pin or a priority that can not be.

    As in nats-server nothing is asked of the other forms of body: such a request belongs to no group.

    Raises:
        BadRequest: as nats-server says it, in its order: after the caps.
    """
    if request.id and config.priority_policy != "pinned_client":
        raise BadRequest("Not a Pinned Client Priority consumer")
    if not 0 <= request.priority <= MAX_PRIORITY:
        raise BadRequest(f"Priority must be between 0 and {MAX_PRIORITY}")
    if config.priority_policy in ("", "none") or body.lstrip()[:1] != b"{":
        return
    if not request.group:
        raise BadRequest("Priority Group missing")
    if request.group not in config.priority_groups:
        raise BadRequest("Invalid Priority Group")


class Waiting:
    """One request in the queue."""

    __slots__ = (
        "beat_at",
        "bytes_left",
        "delivered",
        "ended",
        "expires_at",
        "grouped",
        "heartbeat",
        "left",
        "limited",
        "min_ack_pending",
        "min_pending",
        "no_wait",
        "pin",
        "priority",
        "reply",
    )

    def __init__(self, reply: bytes, request: NextRequest, now: int) -> None:
        self.reply = reply
        self.ended = False
        self.left = max(request.batch, 1)
        self.limited = request.max_bytes > 0
        self.bytes_left = max(request.max_bytes, 0)
        self.no_wait = request.no_wait
        # A negative time is over before it began, and the request is told so when its turn comes.
        self.expires_at = now + request.expires if request.expires else 0
        self.heartbeat = max(request.idle_heartbeat, 0)
        self.beat_at = now + self.heartbeat if self.heartbeat else 0
        self.delivered = 0
        self.grouped = bool(request.group)
        self.pin = request.id
        self.min_pending, self.min_ack_pending = request.min_pending, request.min_ack_pending
        self.priority = request.priority
