"""A stream's configuration: its fields as they are on the wire.

Belongs here: the record (fields, order and defaults of API level 5), reading it from a request and showing it in a
reply. Which values are allowed is in rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from lakestream.protocol.api.jsonio import Duration, Int, Int32, Int64, Time, Uint64, enum
from lakestream.schemas.naming import OFF, VALIDATE_KEY

Retention = Annotated[str, enum("server.RetentionPolicy", "limits", "interest", "workqueue")]
Discard = Annotated[str, enum("server.DiscardPolicy", "old", "new", fold=True)]
Storage = Annotated[str, enum("server.StorageType", "file", "memory")]
Compression = Annotated[str, enum("server.StoreCompression", "none", "s2", refusal="unknown compression algorithm")]
PersistMode = Annotated[str, enum("server.PersistModeType", "default", "async", "")]
REQUIRED_LEVEL = "_nats.req.level"
"""Metadata that names the API level which a configuration needs."""
LAKE = "lakestream.lake"
"""Metadata with which a stream stays out of the lake: `off`."""
CONSISTENCY, LINEARIZABLE, EVENTUAL = "lakestream.consistency", b"linearizable", "eventual"
"""Metadata with which all direct gets of a stream are linearizable, and its values."""
RESERVE = "lakestream.reserve"
"""Metadata with which a stream does not reserve its `max_bytes`: `off`."""
LAST_SEQ = 1 << 62
"""The highest sequence at which a stream begins, or that it is given by an archive or a purge: what is published later
needs room behind it, and no table holds a sequence of 2^63."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Placement of a clustered stream."""

    cluster: str = ""
    tags: list[str] | None = None
    """None: not given. An empty list asks for nothing either, but is kept, as nats-server does."""
    preferred: str = ""


class SubjectTransformConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A subject mapping. An empty `dest` only filters."""

    ALWAYS: ClassVar = frozenset({"src", "dest"})

    src: str = ""
    dest: str = ""


class ExternalStream(msgspec.Struct, frozen=True, kw_only=True):
    """The API and delivery prefixes of another account or domain."""

    ALWAYS: ClassVar = frozenset({"api", "deliver"})

    api: str = ""
    deliver: str = ""


class StreamConsumerSource(msgspec.Struct, frozen=True, kw_only=True):
    """A prepared consumer that a mirror or source reads through."""

    name: str = ""
    deliver_subject: str = ""


class StreamSource(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a mirror, or one source of a stream."""

    ALWAYS: ClassVar = frozenset({"name"})
    BY_POINTER: ClassVar = True

    name: str = ""
    opt_start_seq: Uint64 = 0
    opt_start_time: Time = None
    filter_subject: str = ""
    subject_transforms: list[SubjectTransformConfig] = []
    external: ExternalStream | None = None
    consumer: StreamConsumerSource | None = None


class RePublish(msgspec.Struct, frozen=True, kw_only=True):
    """Republication of stored messages under another subject."""

    ALWAYS: ClassVar = frozenset({"dest"})

    src: str = ""
    dest: str = ""
    headers_only: bool = False


class StreamConsumerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for the stream's consumers. `inactive_threshold` in ns; 0 = no limit."""

    inactive_threshold: Duration = 0
    max_ack_pending: Int = 0


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's configuration (ADR-31, ADR-33, ADR-37, ADR-43 …; docs/internals/streams.md#configuration).

    Durations are ns, sizes bytes; -1 means unlimited where the API says so. A configuration is complete only after
    `stream_rules.checked`; the defaults here are those of an empty request.
    """

    ALWAYS: ClassVar = frozenset(
        {
            "name",
            "retention",
            "max_consumers",
            "max_msgs",
            "max_bytes",
            "max_age",
            "max_msgs_per_subject",
            "discard",
            "storage",
            "num_replicas",
            "compression",
            "allow_direct",
            "mirror_direct",
            "sealed",
            "deny_delete",
            "deny_purge",
            "allow_rollup_hdrs",
            "consumer_limits",
            "allow_msg_ttl",
        }
    )

    name: str = ""
    description: str = ""
    subjects: list[str] = []
    retention: Retention = "limits"
    max_consumers: Int = 0
    max_msgs: Int64 = 0
    max_bytes: Int64 = 0
    max_age: Duration = 0
    max_msgs_per_subject: Int64 = 0
    max_msg_size: Int32 = 0
    discard: Discard = "old"
    storage: Storage = "file"
    num_replicas: Int = 0
    no_ack: bool = False
    duplicate_window: Duration = 0
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: list[StreamSource] = []
    compression: Compression = "none"
    first_seq: Uint64 = 0
    subject_transform: SubjectTransformConfig | None = None
    republish: RePublish | None = None
    allow_direct: bool = False
    mirror_direct: bool = False
    discard_new_per_subject: bool = False
    sealed: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False
    consumer_limits: StreamConsumerLimits = StreamConsumerLimits()
    allow_msg_ttl: bool = False
    subject_delete_marker_ttl: Duration = 0
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: PersistMode = ""
    allow_batched: bool = False
    metadata: dict[str, str] = {}

    @property
    def in_lake(self) -> bool:
        """Return True if the stream has a table where there is a lake."""
        return in_lake(self.storage, self.metadata)

    @property
    def reserved_bytes(self) -> int:
        """Return the bytes that the stream reserves of what account and server may store."""
        return 0 if self.max_bytes < 0 or self.metadata.get(RESERVE) == OFF else self.max_bytes

    @property
    def linearizable(self) -> bool:
        """Return True if direct gets are linearizable also without a header that asks for it. A mirror's never are."""
        return self.mirror is None and self.metadata.get(CONSISTENCY, "").encode() == LINEARIZABLE

    @property
    def validates(self) -> bool:
        """Return True if publishes are checked against their schemas."""
        return self.metadata.get(VALIDATE_KEY, OFF) != OFF


class StreamConfigRequest(StreamConfig, frozen=True, kw_only=True):
    """The body of STREAM.CREATE and STREAM.UPDATE."""

    pedantic: bool = False
    """Refuse with 10157 what would otherwise be adjusted silently."""

    def config(self) -> StreamConfig:
        """Return the configuration alone."""
        return StreamConfig(**{name: getattr(self, name) for name in StreamConfig.__struct_fields__})


_NOT_IN_NAMES = frozenset(" \t\r\n\f.*>\\/")


def valid_name(name: str) -> bool:
    """Return True for a valid stream name (non-empty, without whitespace, `.`, `*`, `>` or path separators)."""
    return bool(name) and not _NOT_IN_NAMES.intersection(name)


def in_lake(storage: str, metadata: Mapping[str, str]) -> bool:
    """Return True if a stream with this storage and metadata has a table where there is a lake."""
    return storage != "memory" and metadata.get(LAKE) != "off"
