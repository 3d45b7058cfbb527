"""What a mirror or a source reads from, as its configuration says it.

Belongs here: the names of an origin, the requests that lead to a consumer of it, and what becomes of its subjects
(docs/internals/streams.md#mirrors-and-sources). Nothing here does anything: upstream.py reads, mirror.py and sources.py
store.
"""

from __future__ import annotations

import hashlib
import string
from typing import Any

import msgspec

from lakestream.protocol import headers
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.domain_subjects import DELIVER_HEADER, sign
from lakestream.protocol.subjects import matches
from lakestream.protocol.transforms import Transform
from lakestream.stream.core.config import StreamSource
from lakestream.stream.mirroring.runs import Run

HEARTBEAT_NS = 1_000_000_000
LIFE_NS = 10_000_000_000
"""A consumer that nobody listens to any more goes after so long (10 s)."""
ACK_WAIT_NS = 79_200_000_000_000
"""22 h: what nats-server asks for; nothing is acked."""

_API = b"$JS.API."
_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase


class Start(msgspec.Struct, frozen=True):
    """Where to begin: at a sequence, else at a time (RFC 3339), else at the beginning. `identity`: of the origin as it
    was known; "" when it is not."""

    seq: int = 0
    time: str | None = None
    identity: str = ""


class Origin:
    """One origin of one stream.

    Args:
        stream: the stream that copies, in `account`.
        mirror: whether that is a mirror; else it has sources.
    """

    def __init__(self, source: StreamSource, account: str, stream: str, *, mirror: bool) -> None:
        self.source = source
        self._account, self._stream, self._mirror = account, stream, mirror
        external = source.external
        self.index = index_of(source)
        """What `Nats-Stream-Source` calls it."""
        self.filters, destinations = selected(source)
        self.header_filters = "\f".join(self.filters) + " " + "\f".join(destinations)
        self.key = key_of(source)
        """Tells the sources of a stream from each other, also those of one origin."""
        self._transforms = [
            (each.src.encode() or b">", Transform(each.src.encode(), each.dest.encode()) if each.dest else None)
            for each in source.subject_transforms
        ]
        kind = "MIRROR" if mirror else "SRC"
        self.consumer = f"JS_{kind}_{short_hash(f'{account} {stream} {self.key}')}"
        """What its consumer is asked to be called: the same after a restart."""
        self.prepared = source.consumer is not None
        """Whether somebody made the consumer; then it stays."""
        if source.consumer is not None:
            self.consumer = source.consumer.name
        self._api = _API
        if external is not None and external.api:
            self._api = external.api.encode().rstrip(b".") + b"."

    @property
    def link(self) -> bytes:
        """What a link to the origin listens to, if it is on a remote server; b"": it is not."""
        return b"" if self._api == _API else sign(self._api)

    def deliver_to(self, token: bytes) -> bytes:
        """A subject for messages: one that nobody else uses, or that of a prepared consumer."""
        external, prepared = self.source.external, self.source.consumer
        if prepared is not None:
            return prepared.deliver_subject.encode()
        prefix = b"$JS"
        if external is not None and external.deliver:
            prefix = external.deliver.encode()
        return b"%b.%b.%b" % (prefix, b"M" if self._mirror else b"S", token)

    def linked_to(self, token: bytes) -> bytes:
        """A subject that nobody else uses, to which a link brings what a prepared consumer delivers; b"": there is
        none. The consumer's own is the same for each attempt, and other nodes' links may still listen to it."""
        return b"$JS.%b.%b" % (b"M" if self._mirror else b"S", token) if self.prepared and self.link else b""

    def renamed(self, subject: bytes) -> bytes:
        """What a message's subject becomes: the first transform that selects it decides."""
        for source, transform in self._transforms:
            if matches(source, subject):
                renamed = None if transform is None else transform.apply(subject)
                return subject if renamed is None else renamed
        return subject

    def renamed_run(self, run: Run) -> Run:
        """A run under the subjects that these become."""
        if not self._transforms:
            return run
        return msgspec.structs.replace(run, subjects=[self.renamed(subject) for subject in run.subjects])

    # ------------------------------------------------------------------ requests
    def request(self, start: Start, deliver: bytes) -> tuple[bytes, bytes, dict[str, Any]]:
        """Subject, header block and body of the request for a consumer, or for a prepared one to begin there."""
        told = [(b"Nats-Required-Api-Level", b"4")]
        if not self._mirror:
            told = [(b"Nats-Required-Api-Level", b"5"), (b"Nats-Stream-Identity", start.identity.encode())]
        if self.prepared:
            subject = f"CONSUMER.RESET.{self.source.name}.{self.consumer}".encode()
            told = [] if self._mirror else told
            if self.link:
                told.append((DELIVER_HEADER, deliver))
            return self._api + subject, headers.build(told) if told else b"", {"seq": start.seq} if start.seq else {}
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
            "metadata": {f"{kind}acc": self._account, f"{kind}stream": self._stream},
        }
        return subject, headers.build(told), {"stream_name": self.source.name, "config": config, "action": ""}

    def needs_flow_control(self) -> ApiError:
        """What INFO shows where a prepared consumer has another ack policy."""
        return api_error(10214 if self._mirror else 10217)

    def removal(self) -> bytes:
        """The subject of the request that removes its consumer."""
        return b"%bCONSUMER.DELETE.%b.%b" % (self._api, self.source.name.encode(), self.consumer.encode())


def index_of(source: StreamSource) -> str:
    """What `Nats-Stream-Source` calls an origin."""
    index = source.name
    if source.external is not None:
        index += f":{short_hash(source.external.api)}"
    if source.consumer is not None:
        index += f":C={short_hash(source.consumer.name)}"
    return index


def selected(source: StreamSource) -> tuple[list[str], list[str]]:
    """The filters of a source, and where each of them leads."""
    if not source.subject_transforms:
        return [source.filter_subject or ">"], [">"]
    pairs = [(each.src or ">", each.dest or ">") for each in source.subject_transforms]
    return [src for src, _ in pairs], [dest for _, dest in pairs]


def key_of(source: StreamSource) -> str:
    """Tells the sources of a stream from each other, also those of one origin."""
    filters, destinations = selected(source)
    return " ".join((index_of(source), "\f".join(filters), "\f".join(destinations)))


def short_hash(text: str) -> str:
    """Eight letters and digits for a text, as nats-server makes them: the first bytes of its SHA-256."""
    return "".join(_DIGITS[byte % len(_DIGITS)] for byte in hashlib.sha256(text.encode()).digest()[:8])
