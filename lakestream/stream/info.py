"""Streams as JSON.

Belongs here: StreamInfo and its parts, as CREATE, UPDATE, INFO and LIST show them (docs/internals/api.md#streams).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.log.store.store import Store
from lakestream.protocol.api.jsonio import dumps, shown
from lakestream.protocol.api.request import API_LEVEL, NATS_VERSION
from lakestream.protocol.decoding import JsonDecoder
from lakestream.protocol.gotime import format_time
from lakestream.stream.core.config import StreamConfig

if TYPE_CHECKING:
    from lakestream.stream.assembly import Stream
    from lakestream.stream.dormant import Dormant

KEPT_CONFIGS = 1024
"""Configurations of streams that are kept in the form of responses (1,024)."""
KEPT_BYTES = 4096
"""Larger ones are not kept (4 KiB, as stored)."""
_STREAM_CONFIG = JsonDecoder(StreamConfig)


def config_shown(config: StreamConfig, *, versions: bool) -> dict[str, Any]:
    """Return a configuration; with `versions` also `_nats.ver` and `_nats.level` of this server in its metadata."""
    fields = shown(config)
    if versions:
        metadata = {**config.metadata, "_nats.ver": NATS_VERSION, "_nats.level": str(API_LEVEL)}
        fields["metadata"] = dict(sorted(metadata.items()))
    return fields


@lru_cache(maxsize=KEPT_CONFIGS)
def _kept(stored: bytes, versions: bool) -> msgspec.Raw:
    """Return `config_shown` of a configuration, given as stored, in JSON. It takes a sixth of STREAM.INFO otherwise."""
    return msgspec.Raw(dumps(config_shown(_STREAM_CONFIG.decode(stored), versions=versions)))


def state_shown(
    stream: Stream | Dormant, *, deleted: bool = False, subjects: dict[str, int] | None = None
) -> dict[str, Any]:
    """Return the state of a stream, with the list of deleted sequences and message counts by subject if asked for."""
    store = stream.store
    state: dict[str, Any] = {
        "messages": store.msgs,
        "bytes": store.bytes,
        "first_seq": store.first_seq,
        "first_ts": format_time(store.first_time),
        "last_seq": store.last_seq,
        "last_ts": format_time(store.last_time),
    }
    if len(store.subjects):
        state["num_subjects"] = len(store.subjects)
    if subjects:
        state["subjects"] = subjects
    # Gaps before the first message are no deletions; those at the end are.
    missing = store.last_seq - store.first_seq + 1 - store.msgs if store.msgs else 0
    if missing:
        state["num_deleted"] = missing
        if deleted and isinstance(store, Store):
            state["deleted"] = list(store.live.iter_missing(store.first_seq, store.last_seq))
    state["consumer_count"] = stream.consumer_count
    return state


def info_shown(
    stream: Stream | Dormant,
    now_ns: int,
    *,
    versions: bool = True,
    domain: str = "",
    cluster: dict[str, Any] | None = None,
    state: dict[str, Any] | None = None,
    alternates: Sequence[dict[str, str]] = (),
) -> dict[str, Any]:
    """Return StreamInfo. Optional fields are shown if they are given; `now_ns` is the time of the answer."""
    stored = stream.stored
    small = len(stored) <= KEPT_BYTES
    fields: dict[str, Any] = {
        "config": _kept(stored, versions) if small else config_shown(stream.config, versions=versions),
        "created": format_time(stream.created_ns),
        "state": state_shown(stream) if state is None else state,
    }
    if domain:
        fields["domain"] = domain
    if cluster:
        fields["cluster"] = cluster
    fields |= stream.feature_info()
    if alternates:
        fields["alternates"] = list(alternates)
    fields["ts"] = format_time(now_ns)
    return fields
