"""Deliver subjects in the bodies of JetStream API requests to a remote server.

Belongs here: the deliver subject in a request, which has another name on the remote, and its way back in the response.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from lakestream.net.remote.link import INBOX
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.domain_subjects import MARK
from lakestream.protocol.subjects import valid_literal

_UNACKED = (None, "none", "flow_control")
"""Ack policies of consumers whose messages are not acked one by one."""
_ANSWER = b'{"type":"io.nats.jetstream.api.v1.'
_KEY = b'"deliver_subject":"'
_SNAPSHOT = b"$JS.SNAPSHOT."
_STORED = b"Nats-Sequence:"
"""Header of a direct get's response, whose body must not be changed."""
_made_here = re.compile(re.escape(_KEY + INBOX) + rb"\w{8}\.d\.").sub
_consumer = re.compile(rb'"type":"io\.nats\.jetstream\.api\.v1\.consumer_(?:create|info|reset)_response"').search


class DeliverTarget(NamedTuple):
    """The deliver subject of a consumer on the remote.

    Attributes:
        there, here: its two names.
        group: the deliver group.
        acked: deliveries are acked.
    """

    there: bytes
    here: bytes
    group: bytes
    acked: bool


def translated_request(body: bytes, prefix: bytes) -> tuple[bytes, DeliverTarget] | None:
    """Return a request with its deliver subject as the remote sees it; None: it names none.

    Args:
        prefix: the prefix of this side's deliver subjects on the remote.
    """
    if b"deliver_subject" not in body:
        return None
    try:
        request = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return None  # rejected by the remote
    place = request.get("config", request) if isinstance(request, dict) else None
    if not isinstance(place, dict):
        return None
    subject = place.get("deliver_subject")
    if not isinstance(subject, str) or not valid_literal(here := subject.encode()):
        return None  # rejected by the remote
    pushed = _pushed(prefix + here, here, place)
    place["deliver_subject"] = pushed.there.decode()
    return msgspec.json.encode(request), pushed


def _pushed(there: bytes, here: bytes, config: dict[str, Any]) -> DeliverTarget:
    group, policy = config.get("deliver_group"), config.get("ack_policy")
    return DeliverTarget(there, here, group.encode() if isinstance(group, str) else b"", policy not in _UNACKED)


def prepared_consumer(body: bytes) -> DeliverTarget | None:
    """Return the deliver subject of a consumer that was made on the remote for a mirror or a source, from a
    CONSUMER.INFO response; None: another consumer."""
    try:
        info = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return None
    config = info.get("config") if isinstance(info, dict) else None
    if not isinstance(config, dict) or config.get("ack_policy") != "flow_control":
        return None
    subject = config.get("deliver_subject")
    if not isinstance(subject, str) or not valid_literal(there := subject.encode()):
        return None
    return _pushed(there, there, config)


class ResponseTranslator:
    """Translates responses of a remote.

    Args:
        prefix: the prefix of this side's deliver subjects on the remote.
        domain: the remote's domain here.
        remote_domain: its domain there, b"" where requests name none.
    """

    def __init__(self, prefix: bytes, domain: bytes, remote_domain: bytes = b"") -> None:
        self._snapshot = b"%b$JS.%b.SNAPSHOT." % (_KEY, domain)
        self._behind = b"%b$JS.%b.SNAPSHOT." % (_KEY, remote_domain) if remote_domain else b""
        self._prefix = prefix

    def shown(self, header: bytes, body: bytes) -> bytes:
        """Return a response as it is shown here."""
        if not body.startswith(_ANSWER) or _STORED in header or _KEY not in body:
            return body
        # Also for the link of another node, whose messages reach subscribers on this node.
        body = _made_here(_KEY, body).replace(_KEY + _SNAPSHOT, self._snapshot)
        return body.replace(self._behind, b"%b%b." % (self._snapshot, MARK)) if self._behind else body

    def consumer(self, header: bytes, body: bytes) -> DeliverTarget | None:
        """Return the deliver subject of the consumer that a response is about; None: not made through this link."""
        if not body.startswith(_ANSWER) or _STORED in header or _KEY not in body or _consumer(body) is None:
            return None
        config: dict[str, Any] = msgspec.json.decode(body).get("config") or {}
        there = str(config.get("deliver_subject", "")).encode()
        return _pushed(there, there.removeprefix(self._prefix), config) if there.startswith(self._prefix) else None
