"""Origins: the streams that mirrors and sources read from, as their configuration names them.

Belongs here: the names of an origin, the requests for a consumer of it, and the subjects and headers of its messages in
the stream that stores them (docs/internals/streams.md#mirrors-and-sources). session.py reads, mirror.py and sources.py
store.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.domain_subjects import DELIVER_HEADER, sign
from lakestream.protocol.subjects import matches, short_hash
from lakestream.protocol.transforms import Transform
from lakestream.stream.core.batch import Run
from lakestream.stream.core.config import StreamSource

HEARTBEAT_NS = 1_000_000_000
LIFE_NS = 10_000_000_000
"""Inactivity after which the origin deletes the consumer (10 s)."""
ACK_WAIT_NS = 79_200_000_000_000
"""22 h, as nats-server requests; nothing is acked."""

STRIPPED = (b"Nats-Expected-", b"Nats-Batch-")
"""Beginnings of headers that concern only the stream to which a message was published."""

_API = b"$JS.API."


class OriginStart(msgspec.Struct, frozen=True):
    """Place to begin: a sequence, else a time (RFC 3339), else the origin's first message.

    `identity`: the origin's, "" if it is not known.
    """

    seq: int = 0
    time: str | None = None
    identity: str = ""


class Origin:
    """One origin of one stream.

    Args:
        stream: the stream that reads it, in `account`.
        mirror: True if that is a mirror, False if it has sources.
    """

    def __init__(self, source: StreamSource, account: str, stream: str, *, mirror: bool) -> None:
        self.source = source
        self._account, self.stream, self._mirror = account, stream, mirror
        external = source.external
        self.index = index_of(source)
        """Name of the origin in `Nats-Stream-Source`."""
        self.filters, destinations = selected(source)
        self.header_filters = "\f".join(self.filters) + " " + "\f".join(destinations)
        self.key = key_of(source)
        """Key that distinguishes the sources of a stream, also those of one origin."""
        self._transforms = [
            (each.src.encode() or b">", Transform(each.src.encode(), each.dest.encode()) if each.dest else None)
            for each in source.subject_transforms
        ]
        kind = "MIRROR" if mirror else "SRC"
        self.consumer = f"JS_{kind}_{short_hash(f'{account} {stream} {self.key}')}"
        """The requested name of its consumer: the same after a restart."""
        self.prepared = source.consumer is not None
        """True if the configuration names an existing consumer, which is not deleted."""
        if source.consumer is not None:
            self.consumer = source.consumer.name
        self._api = _API
        if external is not None and external.api:
            self._api = external.api.encode().rstrip(b".") + b"."

    @property
    def link(self) -> bytes:
        """Return the subject that a link to the origin's remote server listens to; b"" if it is not on one."""
        return b"" if self._api == _API else sign(self._api)

    def deliver_to(self, token: bytes) -> bytes:
        """Return the subject for messages: a unique one, or that of a prepared consumer."""
        external, prepared = self.source.external, self.source.consumer
        if prepared is not None:
            return prepared.deliver_subject.encode()
        prefix = b"$JS"
        if external is not None and external.deliver:
            prefix = external.deliver.encode()
        return b"%b.%b.%b" % (prefix, b"M" if self._mirror else b"S", token)

    def linked_to(self, token: bytes) -> bytes:
        """Return a unique subject to which a link brings what a prepared consumer delivers; b"" without a link.

        The consumer's own subject is the same for each attempt, and other nodes' links may still listen to it.
        """
        return b"$JS.%b.%b" % (b"M" if self._mirror else b"S", token) if self.prepared and self.link else b""

    def renamed(self, subject: bytes) -> bytes:
        """Return a message's subject after the first transform that matches it."""
        for source, transform in self._transforms:
            if matches(source, subject):
                renamed = None if transform is None else transform.apply(subject)
                return subject if renamed is None else renamed
        return subject

    def renamed_run(self, run: Run) -> Run:
        """Return a run with the subjects transformed."""
        if not self._transforms:
            return run
        return msgspec.structs.replace(run, subjects=[self.renamed(subject) for subject in run.subjects])

    # ------------------------------------------------------------------ requests
    def request(self, start: OriginStart, deliver: bytes) -> tuple[bytes, bytes, dict[str, Any]]:
        """Return subject, header block and body of the request for a consumer, or for the reset of a prepared one."""
        lines = [(b"Nats-Required-Api-Level", b"4")]
        if not self._mirror:
            lines = [(b"Nats-Required-Api-Level", b"5"), (b"Nats-Stream-Identity", start.identity.encode())]
        if self.prepared:
            subject = f"CONSUMER.RESET.{self.source.name}.{self.consumer}".encode()
            lines = [] if self._mirror else lines
            if self.link:
                lines.append((DELIVER_HEADER, deliver))
            return self._api + subject, headers.build(lines) if lines else b"", {"seq": start.seq} if start.seq else {}
        config: dict[str, Any] = {"name": self.consumer, "deliver_policy": "all"}
        if start.seq:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start.seq}
        elif start.time:
            config |= {"deliver_policy": "by_start_time", "opt_start_time": start.time}
        config |= {"ack_policy": "none", "ack_wait": ACK_WAIT_NS, "max_deliver": 1}
        subject = b"%bCONSUMER.CREATE.%b" % (self._api, self.source.name.encode())
        if len(self.filters) > 1:
            config["filter_subjects"] = self.filters
        elif self.filters != [">"]:
            config["filter_subject"] = self.filters[0]
            subject += f".{self.consumer}.{self.filters[0]}".encode()
        kind = "_nats.mirror." if self._mirror else "_nats.src."
        config |= {
            "replay_policy": "instant",
            "flow_control": True,
            "deliver_subject": deliver.decode(),
            "idle_heartbeat": HEARTBEAT_NS,
            "inactive_threshold": LIFE_NS,
            "num_replicas": 0,
            "direct": True,
            "sourcing": True,
            "metadata": {f"{kind}acc": self._account, f"{kind}stream": self.stream},
        }
        return subject, headers.build(lines), {"stream_name": self.source.name, "config": config, "action": ""}

    def needs_flow_control(self) -> ApiError:
        """Return the error for INFO if a prepared consumer has another ack policy."""
        return api_error(10214 if self._mirror else 10217)

    def removal(self) -> bytes:
        """Return the subject of the request that deletes the consumer."""
        return b"%bCONSUMER.DELETE.%b.%b" % (self._api, self.source.name.encode(), self.consumer.encode())


def index_of(source: StreamSource) -> str:
    """Return the name of an origin in `Nats-Stream-Source`."""
    index = source.name
    if source.external is not None:
        index += f":{short_hash(source.external.api)}"
    if source.consumer is not None:
        index += f":C={short_hash(source.consumer.name)}"
    return index


def selected(source: StreamSource) -> tuple[list[str], list[str]]:
    """Return the filters of a source, and the destination of each."""
    if not source.subject_transforms:
        return [source.filter_subject or ">"], [">"]
    pairs = [(each.src or ">", each.dest or ">") for each in source.subject_transforms]
    return [src for src, _ in pairs], [dest for _, dest in pairs]


def key_of(source: StreamSource) -> str:
    """Return the key that distinguishes the sources of a stream, also those of one origin."""
    filters, destinations = selected(source)
    return " ".join((index_of(source), "\f".join(filters), "\f".join(destinations)))


def stored_header(header: bytes) -> bytes:
    """Return the header block as another stream stores it: without the `STRIPPED` headers."""
    if b"\r\nNats-" in header and any(b"\r\n" + name in header for name in STRIPPED):
        first, *lines = header.split(b"\r\n")
        header = b"\r\n".join([first, *(line for line in lines if not line.startswith(STRIPPED))])
        return b"" if header == headers.EMPTY else header
    return header  # as it is, even if empty
