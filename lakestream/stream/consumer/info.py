"""ConsumerInfo, as replies and monitoring show it (docs/internals/api.md#consumers), in the field order of
nats-server."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from lakestream.protocol.api.jsonio import shown
from lakestream.protocol.api.request import API_LEVEL, NATS_VERSION
from lakestream.protocol.gotime import format_time
from lakestream.stream.consumer.config import ConsumerConfig
from lakestream.stream.consumer.consumer import Consumer

STEP_NS = 1_000_000_000
"""Once the system clock was stepped by this much (1 s), times are shown as it has them."""


def consumer_info(consumer: Consumer, listed: bool = False, cluster: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return ConsumerInfo.

    Args:
        listed: as CONSUMER.LIST shows it, without the metadata about this server.
        cluster: shown if it is given.
    """
    ledger, clock = consumer.ledger, consumer.stream.clock
    now = clock.now()
    stepped = now - clock.steady()  # the ledger's times are the steady clock's
    if abs(stepped) < STEP_NS:
        stepped = 0
    config = consumer.config
    if not listed:
        about = {"_nats.ver": NATS_VERSION, "_nats.level": str(API_LEVEL)}
        config = replace(config, metadata={**config.metadata, **about})
    floor_consumer, floor_stream = ledger.floor()
    info: dict[str, Any] = {
        "stream_name": consumer.stream.name,
        "name": consumer.name,
        "created": format_time(consumer.created_ns),
        "config": _shown_config(config),
        "delivered": _position(ledger.delivered_consumer, ledger.delivered_stream, ledger.last_delivered_ns, stepped),
        "ack_floor": _position(floor_consumer, floor_stream, ledger.last_ack_ns, stepped),
        "num_ack_pending": len(ledger.pending),
        "num_redelivered": len(ledger.redelivered),
        "num_waiting": consumer.num_waiting,
        "num_pending": consumer.feed.pending(),
    }
    if cluster:
        info["cluster"] = cluster
    if consumer.target.bound:
        info["push_bound"] = True
    remaining = config.pause_until_ns - now
    if remaining > 0:
        info["paused"] = True
        info["pause_remaining"] = remaining
    info["ts"] = format_time(now)
    if consumer.priority_group is not None:
        info["priority_groups"] = [consumer.priority_group]
    return info


def _shown_config(config: ConsumerConfig) -> dict[str, Any]:
    fields = shown(config)
    if config.priority_policy == "none":
        fields.pop("priority_policy", None)
    return fields


def _position(consumer_seq: int, stream_seq: int, active_ns: int, stepped: int) -> dict[str, Any]:
    position: dict[str, Any] = {"consumer_seq": consumer_seq, "stream_seq": stream_seq}
    if active_ns:
        position["last_active"] = format_time(active_ns + stepped)
    return position
