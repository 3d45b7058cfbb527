"""The plan of a move, without I/O.

Belongs here: the next step for a stream from what both servers show of it, the configurations and consumers that a step
creates, and the obstacles before anything has changed.

The new stream carries a mark in its metadata: which stream it was made of, and how far the move has come. Nothing else
is remembered, so a command that is run again continues where the last one ended.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lakestream.account.schemas.bucket import STREAM as SCHEMAS
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.subjects import matches
from lakestream.schemas import naming
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.naming import SCHEMA_KEY, VALIDATE_KEY
from lakestream.schemas.schema import Reference

MARK = "lakestream-move"
"""Key of the mark in the metadata of the new stream."""

FRESH_NS = 2_000_000_000
"""A mirror that heard from its origin within this time (2 s) knows its lag."""

COPY_BYTES, COPY_MSGS = 20_000_000, 25_000
"""Bytes and messages per second that a mirror copies on two cores (docs/benchmarks.md): for estimates."""
STREAM_S = 0.5
"""Time that each stream takes besides, for estimates."""

_NOT_IN_A_MIRROR = (
    "subjects",
    "duplicate_window",
    "placement",
    "first_seq",
    "subject_transform",
    "republish",
    "subject_delete_marker_ttl",
    "allow_atomic",
    "allow_batched",
    "sealed",
)
"""Keys that a mirror must not have, or that would act on copied messages: they come back when it is promoted."""
_NOT_MOVED = ("placement", "first_seq", "mirror", "sources")
_SERVERS_OWN = ("_nats.ver", "_nats.level", "_nats.req.level", MARK)
_START = ("opt_start_seq", "opt_start_time")
_QUEUES = ("workqueue", "interest")


class MoveWay(enum.Enum):
    """The way in which a stream moves."""

    MIRROR = "mirror"
    SOURCE = "source"
    BACKUP = "backup"


class Stage(enum.StrEnum):
    """Progress of the new stream: the mark's `stage`."""

    MIRROR = "mirror"
    """A mirror."""
    QUEUE = "queue"
    """A stream of a queue without its sources; its consumers are being created."""
    SOURCE = "source"
    """A stream that takes the messages out of the origin."""
    RESTORED = "restored"
    """Being restored from a backup, or restored and not compared yet."""
    CUT = "cut"
    """An ordinary stream; consumers may be missing."""
    DONE = "done"


class Step(enum.Enum):
    """The next thing to do for a stream."""

    CREATE = "create"
    WAIT = "wait"
    WAIT_PUBLISHERS = "wait for publishers"
    VERIFY = "verify"
    CUT = "cut over"
    CONSUMERS = "consumers"
    QUEUE_CONSUMERS = "consumers of the queue"
    TAKE = "take over from the consumers there"
    END_SOURCE = "end the source"
    BACKUP = "backup"
    CONFIRM = "confirm"
    DISCARD = "discard"
    DONE = "done"


class Blocked(Exception):
    """Raised when a stream cannot move; the text says why and what to do."""


class MoveMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The mark of a stream that is moving or has moved here.

    Attributes:
        origin: creation time of the origin.
        last_seq: last sequence of the origin at the cut-over.
    """

    origin: str
    stage: Stage
    last_seq: int = 0


_MARK = msgspec.json.Decoder(MoveMark)


class SeenStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as STREAM.INFO shows it."""

    config: dict[str, Any]
    created: str = ""
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    consumers: int = 0
    lag: int = 0
    active_ns: int = -1
    error: str = ""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> SeenStream:
        """Return what an answer of STREAM.INFO shows."""
        state = info["state"]
        copy: Mapping[str, Any] = info.get("mirror") or next(iter(info.get("sources") or ()), {})
        return cls(
            config=info["config"],
            created=str(info.get("created", "")),
            messages=int(state["messages"]),
            bytes=int(state["bytes"]),
            first_seq=int(state["first_seq"]),
            last_seq=int(state["last_seq"]),
            consumers=int(state.get("consumer_count", 0)),
            lag=int(copy.get("lag", 0)),
            active_ns=int(copy.get("active", -1)),
            error=str((copy.get("error") or {}).get("description", "")),
        )

    @property
    def name(self) -> str:
        """Return its name."""
        return str(self.config["name"])

    @property
    def is_queue(self) -> bool:
        """Return True for a work queue or an interest stream."""
        return self.config.get("retention") in _QUEUES

    @property
    def mark(self) -> MoveMark | None:
        """Return its mark; None: no stream of a move."""
        text = (self.config.get("metadata") or {}).get(MARK)
        try:
            return _MARK.decode(text) if text else None
        except DECODE_ERRORS:
            return None

    @property
    def schemas(self) -> tuple[Reference, ...]:
        """Return the schemas that its metadata names."""
        text = (self.config.get("metadata") or {}).get(SCHEMA_KEY)
        try:
            return naming.parse(text).references() if text else ()
        except BadSchema:
            return ()

    def moved_from(self, origin: SeenStream) -> bool:
        """Return True if the move of a stream to this one is complete."""
        return self.mark is not None and self.mark.origin == origin.created and self.mark.stage is Stage.DONE

    def heard(self) -> bool:
        """Return True if it has heard from its origin lately."""
        return 0 <= self.active_ns < FRESH_NS


def way_of(origin: SeenStream, *, backup: bool) -> MoveWay:
    """Return the way in which a stream moves."""
    if backup:
        return MoveWay.BACKUP
    return MoveWay.SOURCE if origin.is_queue else MoveWay.MIRROR


# ---------------------------------------------------------------------------- the next step


def next_step(
    way: MoveWay,
    origin: SeenStream,
    target: SeenStream | None,
    *,
    quiet: bool,
    verified: bool,
    restored: bool = False,
    others: int = 0,
    schemas: bool = True,
) -> Step:
    """Return the next step for a stream.

    Args:
        target: the stream of that name on the new server; None: there is none.
        quiet: the publishers of the origin have stopped.
        verified: the copy was compared since.
        restored: this run has seen the end of the restore. A nats-server shows a stream while it is restored, and keeps
            what came of it.
        others: consumers of a queue at the origin that move, and are still there.
        schemas: those that it names are on the new server, as far as they move with it.

    Raises:
        Blocked: the new server has another stream of that name, or one that moves in another way.
    """
    if target is None:
        if way is MoveWay.BACKUP:
            return Step.WAIT_PUBLISHERS if not quiet else Step.BACKUP if schemas else Step.WAIT
        return Step.CREATE if schemas else Step.WAIT
    mark = target.mark
    if mark is None:
        raise Blocked(f"the new server already has a stream {target.name}; delete or rename it")
    if mark.origin != origin.created:
        raise Blocked(f"stream {target.name} there was made from another stream of that name ({mark.origin})")
    if way is MoveWay.BACKUP and mark.stage in (Stage.MIRROR, Stage.QUEUE, Stage.SOURCE):
        raise Blocked(
            f"stream {target.name} there is a {mark.stage.value}: run it without --by backup, or undo it first"
        )
    match mark.stage:
        case Stage.DONE:
            return Step.DONE
        case Stage.CUT:
            return Step.CONSUMERS
        case Stage.QUEUE:
            return Step.QUEUE_CONSUMERS
        case Stage.SOURCE:
            if others and target.heard():
                return Step.TAKE
            if others or origin.messages or not target.heard():
                return Step.WAIT
            return Step.END_SOURCE if quiet else Step.WAIT_PUBLISHERS
        case Stage.RESTORED:
            if not restored or origin.last_seq != mark.last_seq:
                return Step.DISCARD
            return Step.CONFIRM if verified else Step.VERIFY
    if not copied(origin, target):
        return Step.WAIT
    if not quiet:
        return Step.WAIT_PUBLISHERS
    return Step.CUT if verified else Step.VERIFY


def have_arrived(origin: SeenStream, target: SeenStream | None) -> bool:
    """Return True if the new server has all schemas of the bucket that moves."""
    mark = target.mark if target is not None else None
    if target is None or mark is None:
        return False
    return mark.stage in (Stage.CUT, Stage.DONE) or (mark.stage is Stage.MIRROR and copied(origin, target))


def copied(origin: SeenStream, target: SeenStream) -> bool:
    """Return True if a mirror has every message of its origin.

    Its last sequence may be lower: where the last messages of the origin were deleted, it has seen none of them.
    """
    if target.lag or not target.heard():
        return False
    return target.last_seq >= origin.last_seq or target.messages == origin.messages


def differs(origin: SeenStream, target: SeenStream) -> str:
    """Return in what the states of a stream and its copy differ; "": in nothing."""
    pairs = [("messages", origin.messages, target.messages)]
    if origin.messages:
        pairs.append(("first_seq", origin.first_seq, target.first_seq))
    return ", ".join(f"{name} {there:,} there, {here:,} here" for name, there, here in pairs if there != here)


# ---------------------------------------------------------------------------- what a step creates


def _with_mark(config: Mapping[str, Any], origin: SeenStream, stage: Stage, last_seq: int = 0) -> dict[str, Any]:
    metadata = {key: value for key, value in (config.get("metadata") or {}).items() if key not in _SERVERS_OWN}
    mark = msgspec.json.encode(MoveMark(origin.created, stage, last_seq)).decode()
    return {**config, "metadata": {**metadata, MARK: mark}}


def _without(config: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    left_out = set(keys)
    return {key: value for key, value in config.items() if key not in left_out}


def moved_config(origin: SeenStream, stage: Stage, most_replicas: int, last_seq: int = 0) -> dict[str, Any]:
    """Return the configuration of the new stream as an ordinary one."""
    config = _without(origin.config, _NOT_MOVED)
    config["num_replicas"] = min(int(config.get("num_replicas") or 1), most_replicas)
    return _with_mark(config, origin, stage, last_seq)


def remarked(target: SeenStream, stage: Stage) -> dict[str, Any]:
    """Return the configuration of a stream that has come further."""
    assert target.mark is not None
    mark = msgspec.json.encode(msgspec.structs.replace(target.mark, stage=stage)).decode()
    metadata = target.config.get("metadata") or {}
    kept = {key: value for key, value in metadata.items() if key not in _SERVERS_OWN}
    return {**target.config, "metadata": {**kept, MARK: mark}}


def mirror_config(origin: SeenStream, api: str, most_replicas: int) -> dict[str, Any]:
    """Return the configuration of a mirror. `api`: prefix of the origin's API on the new server."""
    config = _without(moved_config(origin, Stage.MIRROR, most_replicas), _NOT_IN_A_MIRROR)
    config["metadata"] = _without(config["metadata"], (VALIDATE_KEY,))  # mirrors do not validate
    return {**config, "mirror": {"name": origin.name, "external": {"api": api}}}


def source_config(origin: SeenStream, api: str, most_replicas: int) -> dict[str, Any]:
    """Return the configuration of a stream that takes the messages out of a queue."""
    config = moved_config(origin, Stage.SOURCE, most_replicas)
    return {**config, "sources": [{"name": origin.name, "external": {"api": api}}]}


def consumer_request(stream: str, info: Mapping[str, Any], last_seq: int, most_replicas: int) -> dict[str, Any]:
    """Return the request that creates a consumer where it stood.

    Args:
        info: the consumer as CONSUMER.LIST shows it.
        last_seq: last sequence of the new stream.
    """
    config = _without(info["config"], _START)
    metadata = {key: value for key, value in (config.get("metadata") or {}).items() if key not in _SERVERS_OWN}
    if metadata or "metadata" in config:
        config["metadata"] = metadata
    if config.get("num_replicas"):
        config["num_replicas"] = min(int(config["num_replicas"]), most_replicas)
    position = info["ack_floor"] if config.get("ack_policy", "none") != "none" else info["delivered"]
    # A copy may end before its origin, where the last messages were deleted: nothing after its end is skipped.
    start = min(int(position["stream_seq"]), last_seq) + 1
    config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    return {"stream_name": stream, "config": config, "action": "create"}


def queue_consumer_request(stream: str, info: Mapping[str, Any], most_replicas: int) -> dict[str, Any]:
    """Return the request that creates a consumer of a queue, whose messages get new sequences."""
    request = consumer_request(stream, info, 0, most_replicas)
    config = _without(request["config"], _START)
    return {**request, "config": {**config, "deliver_policy": "all"}}


def is_durable(info: Mapping[str, Any]) -> bool:
    """Return True for a consumer that moves; others end with their clients."""
    config = info["config"]
    return bool(config.get("durable_name")) and config.get("ack_policy") != "flow_control"


# ---------------------------------------------------------------------------- obstacles


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A server as the rehearsal sees it.

    Attributes:
        lakestream: it is a lakestream server that opens links, as far as they are allowed.
        version: of the server.
        api_level: of its JetStream.
        max_payload: in bytes.
        clustered: it has several nodes.
        domain: of its JetStream.
        limits: of the account, as `$JS.API.INFO` shows them; `used`: streams and bytes in use.
        tiers: limits and use for each number of replicas (`R3`), in accounts that have such limits.
        publish, subscribe: permissions of the user; None: unrestricted.
    """

    lakestream: bool = False
    version: str = ""
    api_level: int = 0
    max_payload: int = 1 << 20
    clustered: bool = False
    domain: str = ""
    limits: dict[str, Any] = {}
    used: dict[str, Any] = {}
    tiers: dict[str, dict[str, Any]] = {}
    publish: dict[str, Any] | None = None
    subscribe: dict[str, Any] | None = None

    @property
    def most_replicas(self) -> int:
        """Return the maximum number of replicas of a stream."""
        return 5 if self.clustered else 1

    def replicas(self, origin: SeenStream) -> int:
        """Return the number of replicas that a stream will have here."""
        return min(int(origin.config.get("num_replicas") or 1), self.most_replicas)

    def filled(self, origin: SeenStream) -> Side:
        """Return the side with a stream added to its use."""
        tier = f"R{self.replicas(origin)}"
        if tier in self.tiers:
            return msgspec.structs.replace(self, tiers=self.tiers | {tier: _added(self.tiers[tier], origin, 1)})
        return msgspec.structs.replace(self, used=_added(self.used, origin, self.replicas(origin)))


class Obstacle(msgspec.Struct, frozen=True):
    """A reason why a stream ("": every stream) cannot move, or a difference that it will have there.

    `stops`: nothing moves before it is removed.
    """

    stream: str
    text: str
    stops: bool = True


def permitted(rule: Mapping[str, Any] | None, subject: str) -> bool:
    """Return True if a rule, as `$SYS.REQ.USER.INFO` shows it, allows a subject."""
    if rule is None:
        return True
    allow, deny = rule.get("allow"), rule.get("deny") or ()
    name = subject.encode()
    if allow and not any(matches(each.split()[0].encode(), name) for each in allow):
        return False
    return not any(matches(each.split()[0].encode(), name) for each in deny)


_NEEDED_FROM = ("STREAM.NAMES", "STREAM.INFO.{}", "STREAM.MSG.GET.{}", "CONSUMER.LIST.{}")
_NEEDED_TO = ("STREAM.INFO.{}", "STREAM.MSG.GET.{}", "STREAM.UPDATE.{}", "CONSUMER.DURABLE.CREATE.{}.c")
_NEEDED_BY = {
    MoveWay.MIRROR: (("CONSUMER.CREATE.{}.c",), ("STREAM.CREATE.{}",)),
    MoveWay.SOURCE: (("CONSUMER.CREATE.{}.c", "CONSUMER.DELETE.{}.c"), ("STREAM.CREATE.{}",)),
    MoveWay.BACKUP: (("STREAM.SNAPSHOT.{}",), ("STREAM.RESTORE.{}",)),
}


def obstacles(
    way: MoveWay,
    origin: SeenStream,
    target: SeenStream | None,
    old: Side,
    new: Side,
    taken: Iterable[str],
    durables: int,
    take: bool,
    missing: Sequence[Reference] = (),
) -> list[Obstacle]:
    """Return the obstacles of one stream.

    Args:
        missing: schemas that the stream names, and the new server will not have.
        taken: streams of the new server with overlapping subjects.
        durables: durable consumers of the origin.
        take: the consumers of queues may be deleted there.
    """
    name, config = origin.name, origin.config
    stops: list[str] = []
    notes: list[str] = []
    own = target is not None and target.mark is not None and target.mark.origin == origin.created
    if target is not None and target.moved_from(origin):
        return [Obstacle(name, "it has moved already", stops=False)]
    if target is not None and not own:
        stops.append("the new server has a stream of that name")
    if target is None and (others := sorted(set(taken) - {name})):
        stops.append(f"the new server has its subjects in {', '.join(others)}")
    if config.get("mirror"):
        stops.append(f"it is a mirror of {config['mirror'].get('name')}: move that, and create the mirror again")
    if config.get("sources"):
        stops.append("it has sources: remove them first, and add them to the new stream")
    needed = int((config.get("metadata") or {}).get("_nats.req.level") or 0)
    if needed > new.api_level:
        stops.append(f"it uses features of API level {needed}; the new server has {new.api_level}")
    if way is not MoveWay.BACKUP:
        for key, what in (("allow_msg_counter", "counters"), ("allow_msg_schedules", "message schedules")):
            if config.get(key):
                stops.append(f"it has {what}, which no mirror has: move it with --by backup")
    if way is MoveWay.SOURCE and not own:
        stops += _queue(origin, durables, take)
        notes.append(f"{config['retention']}: its messages are taken out of the old stream and get new sequences")
    if missing:
        names = ", ".join(map(str, missing))
        stops.append(f"the new server has no schema {names}: move {SCHEMAS} with the stream, or register it")
    stops += _permissions(way, name, old, new)
    stops += _room(origin, new)
    if new.max_payload < old.max_payload and not 0 < int(config.get("max_msg_size") or -1) <= new.max_payload:
        notes.append(
            f"max_payload is {new.max_payload:,} there, and {old.max_payload:,} here: the copy stops at a message that "
            "is larger"
        )
    if (replicas := int(config.get("num_replicas") or 1)) > new.most_replicas:
        notes.append(f"{replicas} replicas become {new.most_replicas}: the new server is not a cluster")
    if config.get("placement"):
        notes.append("its placement is not taken over")
    if way is MoveWay.BACKUP and (durables or origin.is_queue):
        notes.append("stop its consumers with the publishers: what they ack during the backup is not taken over")
    if way is MoveWay.MIRROR and durables:
        notes.append("messages acked out of order, above a consumer's ack floor, are delivered again")
    if origin.consumers > durables and way is not MoveWay.SOURCE:
        notes.append(f"ephemeral consumers ({origin.consumers - durables}) are not taken over")
    return [*(Obstacle(name, text) for text in stops), *(Obstacle(name, text, stops=False) for text in notes)]


def _queue(origin: SeenStream, durables: int, take: bool) -> list[str]:
    if not durables or take:
        return []
    return [
        f"it is a {origin.config['retention']} stream with consumers ({durables}): stop the workers, then add "
        "--take-consumers, which creates the consumers on the new server and deletes them on the old one"
    ]


def _permissions(way: MoveWay, name: str, old: Side, new: Side) -> list[str]:
    there, here = _NEEDED_BY[way]
    found = []
    for side, what, subjects in ((old, "old", (*_NEEDED_FROM, *there)), (new, "new", (*_NEEDED_TO, *here))):
        missing = [
            subject
            for each in subjects
            if not permitted(side.publish, subject := f"$JS.API.{each.format(name).replace('.c', '.lakestream')}")
        ]
        if missing:
            found.append(f"the user of the {what} server may not publish to {', '.join(missing)}")
        if not permitted(side.subscribe, "_INBOX.lakestream.x"):
            found.append(f"the user of the {what} server may not subscribe to _INBOX.>")
    return found


def _room(origin: SeenStream, new: Side) -> list[str]:
    replicas = new.replicas(origin)
    tier = f"R{replicas}"
    if new.tiers and tier not in new.tiers:
        return [
            f"the account's limits allow no streams with {replicas} replicas (tiers: {', '.join(sorted(new.tiers))})"
        ]
    # The limits of a tier are for one replica of each stream, those of an account for all replicas.
    used = new.tiers[tier] if new.tiers else new.used
    limits = used.get("limits") or {} if new.tiers else new.limits
    size = origin.bytes * (1 if new.tiers else replicas)
    whose = f"tier {tier} of the account" if new.tiers else "the account"
    found = []
    key = _storage(origin)
    limit, taken = int(limits.get(f"max_{key}", -1)), int(used.get(key, 0))
    if 0 < limit < taken + size:
        found.append(f"{key}: it needs {size:,} bytes, and {whose} has {max(0, limit - taken):,} left")
    streams = int(limits.get("max_streams", -1))
    if 0 < streams <= int(used.get("streams", 0)):
        found.append(f"{whose} has its limit of {streams} streams")
    return found


def _storage(origin: SeenStream) -> str:
    return "memory" if origin.config.get("storage") == "memory" else "storage"


def _added(used: Mapping[str, Any], origin: SeenStream, replicas: int) -> dict[str, Any]:
    """Return the use of an account or tier with one more stream."""
    key = _storage(origin)
    return {
        **used,
        key: int(used.get(key, 0)) + origin.bytes * replicas,
        "streams": int(used.get("streams", 0)) + 1,
    }


def estimate_s(origin: SeenStream) -> float:
    """Return the estimated time of a copy, in seconds."""
    return STREAM_S + max(origin.bytes / COPY_BYTES, origin.messages / COPY_MSGS)


def selected(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the streams that one of the patterns names (`*` stands for any text), in the order of their names.

    Raises:
        Blocked: a pattern names no stream.
    """
    from fnmatch import fnmatchcase

    every, found = sorted(names), set[str]()
    for pattern in patterns:
        chosen = [name for name in every if fnmatchcase(name, pattern)]
        if not chosen:
            raise Blocked(f"the old server has no stream {pattern}")
        found.update(chosen)
    return sorted(found)


def as_json(body: Mapping[str, Any]) -> bytes:
    """Return the body of a request."""
    return json.dumps(body).encode()
