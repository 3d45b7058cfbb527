"""The monitoring pages of JetStream.

Belongs here: /jsz, the `jetstream` object of /varz, and the health of streams and consumers. A page over thousands of
streams is made in steps, so that it does not keep clients waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from lakestream.account.engine import Engine
from lakestream.meta.info import TRAFFIC_ACCOUNT
from lakestream.meta.meta import DIRECTORY as META
from lakestream.meta.meta import GROUP as META_GROUP
from lakestream.meta.placement import peer_id
from lakestream.meta.site import group_id
from lakestream.ops.monitoring.monitored import Monitored, Serving, Streams
from lakestream.ops.monitoring.query import BadQuery, Query
from lakestream.ports import Share
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.api.request import API_LEVEL
from lakestream.protocol.durations import format_duration
from lakestream.protocol.gotime import format_time
from lakestream.protocol.subjects import Steps
from lakestream.raft.group.group import Group
from lakestream.stream.assembly import Stream
from lakestream.stream.consumer.info import consumer_info
from lakestream.stream.dormant import Dormant
from lakestream.stream.info import config_shown, state_shown

_UINT64 = (1 << 64) - 1
"""The limit -1 as uint64, as nats-server shows limits of accounts."""

DEFAULT_LIMIT = 1024
COUNTED_AT_ONCE = 256
"""Streams whose sizes are added up in one step."""
SHOWN_AT_ONCE = 16
"""Streams that are shown in one step."""

T = TypeVar("T")


class NotLeading(BadQuery):
    """Raised for a question that the leader of the meta group alone answers."""


class Health(NamedTuple):
    """A health report; status 200 is healthy. `kind` is the error's type with details, `more` are others of it."""

    status: int
    reason: str = ""
    kind: str = ""
    account: str = ""
    stream: str = ""
    consumer: str = ""
    more: tuple[str, ...] = ()


class JetStreamPages:
    """The JetStream pages of one server."""

    def __init__(self, node: Monitored) -> None:
        self._node = node

    async def in_turns(self, steps: Steps[T]) -> T:
        """Do steps while turns of the event loop have time for them; return the result."""
        share: Share = self._node.accounts.system.hub.turn
        try:
            while not share.is_over():
                next(steps)
        except StopIteration as end:
            return cast(T, end.value)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def others() -> Iterator[None]:
            try:
                while not done.cancelled():
                    next(steps)
                    yield
            except StopIteration as end:
                done.set_result(end.value)
            except Exception as error:
                done.set_exception(error)

        share.wait(lambda: share.run_in_steps(others()))
        return await done

    # ------------------------------------------------------------------ /varz
    def varz(self) -> dict[str, Any]:
        """Return the `jetstream` object of /varz; empty without JetStream."""
        jetstream = self._node.jetstream
        if jetstream is None:
            return {}
        page = {"config": self._config(), "stats": self._stats(jetstream), "limits": self._limits()}
        meta = jetstream.node.shown.meta()
        return page | {"meta": meta} if meta else page

    def _config(self) -> dict[str, Any]:
        options = self._node.options.jetstream
        if options is None:
            return {"max_memory": 0, "max_storage": 0}
        config: dict[str, Any] = {
            "max_memory": options.max_memory,
            "max_storage": options.max_file,
            "store_dir": f"{options.store_dir}/jetstream",
        }
        config["sync_interval"] = options.sync_interval_ns
        if options.shows_sync_always:  # then the interval counts for nothing, but nats-server shows it too
            config["sync_always"] = True
        config |= {"domain": options.domain} if options.domain else {}
        return config | {"strict": options.strict}

    def _limits(self) -> dict[str, Any]:
        options = self._node.options.jetstream
        assert options is not None  # Invariant: there is JetStream only with options for it.
        limits = {
            "max_batch_inflight_per_stream": options.batches_per_stream,
            "max_batch_inflight_total": options.batches_total,
            "max_batch_size": options.batch_max_msgs,
            "max_batch_timeout": options.batch_timeout_ns,
            "max_request_batch": options.max_request_batch,
            "max_ack_pending": options.max_ack_pending,
            "default_max_consumers": options.default_max_consumers,
        }
        return {name: value for name, value in limits.items() if value}

    def _stats(self, jetstream: Streams) -> dict[str, Any]:
        served = jetstream.served.values()
        return _usage(_streams(served)) | self._counts(jetstream)

    @staticmethod
    def _counts(jetstream: Streams) -> dict[str, Any]:
        served = jetstream.served.values()
        return {"accounts": len(served), "ha_assets": 0, "api": _api(served, API_LEVEL)}

    # ------------------------------------------------------------------ /jsz
    def jsz(self, query: Query) -> Steps[dict[str, Any]]:
        """Make the page for a query with acc, accounts, streams, consumers, config, raft, memory, leader-only,
        stream-leader-only, offset and limit. Raises NotLeading, with leader-only, on a node that does not lead the meta
        group."""
        account = query.text("acc")
        detailed = query.flag("accounts") or query.flag("streams") or query.flag("consumers")
        offset, limit = query.page(DEFAULT_LIMIT)
        jetstream = self._node.jetstream
        head = {"server_id": self._node.identity.server_id, "now": format_time(time.time_ns())}
        if jetstream is None:
            nothing = {"memory": 0, "storage": 0, "reserved_memory": 0, "reserved_storage": 0, "accounts": 0}
            api = {"level": 0, "total": 0, "errors": 0}
            empty = {"streams": 0, "consumers": 0, "messages": 0, "bytes": 0, "total": 0}
            return nothing | {"ha_assets": 0, "api": api} | head | {"disabled": True, "config": self._config()} | empty
        meta = jetstream.node.shown.meta()
        if query.flag("leader-only") and meta and meta.get("leader") != jetstream.node.me:
            raise NotLeading("filtered response: not leader")
        usage, total, led, raft = _usage(()), totals(()), dict[str, int](), query.flag("raft")
        for some in _parts(list(_streams(jetstream.served.values())), COUNTED_AT_ONCE):
            usage, total = _summed((usage, _usage(some))), _summed((total, totals(some)))
            if raft:
                led = _summed((led, totals([each for each in some if self._leads(each)])))
            yield
        page = usage | self._counts(jetstream) | head | {"config": self._config(), "limits": self._limits()}
        for name, number in total.items():
            page[name] = number
            if name in ("streams", "consumers") and led.get(name):
                page[f"{name}_leader"] = led[name]
        names = [name for name in (account,) if name in jetstream.served]
        if not account and detailed:
            names = sorted(jetstream.served)[offset : offset + limit]
        if names:
            page["account_details"] = details = []
            for name in names:
                if name in jetstream.served:
                    details.append((yield from self.account(name, jetstream.served[name], query)))
        if meta:
            page["meta_cluster"] = meta
        return page | {"total": len(jetstream.served)}

    def account(self, name: str, serving: Serving, query: Query) -> Steps[dict[str, Any]]:
        """Make one account of the page."""
        account = self._node.accounts.get(name)
        limits = account.jetstream if account is not None else None
        held = sorted(serving.engine.shown(), key=lambda one: one.name)
        usage, memory = _usage(()), dict[str, int]()
        for some in _parts(held, COUNTED_AT_ONCE):
            usage = _summed((usage, _usage(some)))
            yield
        page: dict[str, Any] = {"name": name, "id": name} | usage
        if limits is not None:
            page |= {"reserved_memory": limits.max_memory & _UINT64, "reserved_storage": limits.max_file & _UINT64}
        page |= {"accounts": 0, "ha_assets": 0, "api": _api([serving], 0)}
        config, consumers, direct = query.flag("config"), query.flag("consumers"), query.flag("direct-consumers")
        raft, leading = query.flag("raft"), query.flag("stream-leader-only")
        weighed, listed, details = query.flag("memory"), query.flag("streams") or consumers, list[dict[str, Any]]()
        for some in _parts(held if weighed or listed else [], SHOWN_AT_ONCE):
            for stream in some:
                its_memory = stream.memory() if weighed else {}
                memory = _summed((memory, its_memory))
                if listed and (not leading or self._leads(stream)):
                    detail = self._stream(stream, consumers, consumers and direct, config, raft)
                    details.append(detail | ({"lakestream_memory": its_memory} if weighed else {}))
            yield
        if weighed:
            page["lakestream_memory"] = memory
        if details:
            page["stream_detail"] = details
        return page

    def _leads(self, stream: Stream | Dormant) -> bool:
        return bool(self._cluster(stream).get("leader") == self._node.identity.server_name)

    def _stream(
        self, stream: Stream | Dormant, consumers: bool, direct: bool, config: bool, raft: bool
    ) -> dict[str, Any]:
        """Return a stream; on request with its consumers, those of mirrors and sources, and its Raft group, which is
        that of its consumers, too."""
        page: dict[str, Any] = {
            "name": stream.name,
            "created": format_time(stream.created_ns),
            "cluster": self._cluster(stream),
        }
        if config:
            page["config"] = config_shown(stream.config, versions=False)
        page["state"] = state_shown(stream)
        found = [consumer for _, consumer in sorted(stream.consumers.items())]
        for field, wanted, hidden in (("consumer_detail", consumers, False), ("direct_consumer_detail", direct, True)):
            details = [consumer_info(each, listed=True) for each in found if wanted and each.config.direct is hidden]
            for detail in details if not config else ():
                del detail["config"]
            if details:
                page[field] = details
        if raft and "raft_group" in page["cluster"]:
            page["stream_raft_group"] = page["cluster"]["raft_group"]
        return page | stream.feature_info()

    def _cluster(self, stream: Stream | Dormant) -> dict[str, Any]:
        shown = self._node.jetstream.node.shown.cluster(stream.uid) if self._node.jetstream is not None else {}
        return shown or {"leader": self._node.identity.server_name}

    # ------------------------------------------------------------------ Raft groups
    @property
    def has_groups(self) -> bool:
        """Return True if this node is a member of a Raft group."""
        jetstream = self._node.jetstream
        return jetstream is not None and bool(jetstream.node.groups.replicated())

    def raftz(self, account: str, group: str) -> dict[str, Any]:
        """Return the Raft groups of this node that belong to an account, by the account; with `group` only that one.

        Args:
            account: "": the system account, which has the meta group; groups of streams belong to their accounts.
        """
        jetstream, system = self._node.jetstream, self._node.accounts.system.name
        if jetstream is None:
            return {}
        accounts = {group_id(uid): replica.account for uid, replica in jetstream.node.replicas.by_uid.items()}
        accounts[META_GROUP] = system
        wanted, shown = account or system, {}
        for name, one in sorted(jetstream.node.groups.replicated().items()):
            known = META if name == META_GROUP else name
            if accounts.get(name) == wanted and group in ("", known):
                shown[known] = _group(one)
        return {wanted: shown} if shown else {}

    # ------------------------------------------------------------------ /healthz
    def healthz(self, query: Query) -> Health:
        """Return the health of the server, or of the given account, stream or consumer.

        Damaged tables of the lake count for a given stream, and with `strict` (lakestream's own). By default the server
        is healthy: a restart, which is what a failed liveness check means, would change nothing.
        """
        account, stream, consumer = query.text("account"), query.text("stream"), query.text("consumer")
        if consumer and not stream:
            return Health(400, '"stream" must not be empty when checking consumer health', "BAD_REQUEST")
        if stream and not account:
            return Health(400, '"account" must not be empty when checking stream health', "BAD_REQUEST")
        query.flag("details")
        jetstream = self._node.jetstream
        if self._node.lame_duck:
            return Health(500, "server is in lame duck mode and takes no new connections", "CONNECTION")
        leaves = self._node.leafnodes
        if query.flag("leaf-remotes-connected") and leaves is not None and (lacking := leaves.unconnected()):
            return Health(503, lacking[0], "CONNECTION", more=tuple(lacking[1:]))
        flags = [query.flag(name) for name in ("js-enabled-only", "js-enabled", "js-server-only")]
        if any(flags):
            return Health(200)
        if query.flag("js-meta-only") and jetstream is not None and jetstream.node.shown.meta():
            wrong = jetstream.node.shown.unhealthy_meta()
            return Health(503, wrong, "JETSTREAM") if wrong else Health(200)
        serving = jetstream.served.get(account) if jetstream is not None else None
        if account and serving is None:
            return Health(404, f'JetStream account "{account}" not found', "ACCOUNT", account)
        if jetstream is None:
            return Health(200)
        damages = jetstream.keeper.damages() if jetstream.keeper is not None else {}
        if serving is not None and stream:
            return _streams_health(serving.engine, account, stream, consumer, damages)
        return _all_health(jetstream, account, damages if query.flag("strict") else {})


def raft_groups(node: Monitored, jetstream: Streams) -> list[tuple[str, str, Group]]:
    """Return (account, stream, group) of the Raft groups of this node; the meta group first, as `_meta_` of the system
    account."""
    replicas = {group_id(uid): replica for uid, replica in jetstream.node.replicas.by_uid.items()}
    found: list[tuple[str, str, Group]] = []
    for name, group in jetstream.node.groups.replicated().items():
        if name == META_GROUP:
            found.insert(0, (node.accounts.system.name, META, group))
        elif name in replicas:
            found.append((replicas[name].account, replicas[name].name, group))
    return found


def _group(group: Group) -> dict[str, Any]:
    """Return a Raft group. Only its leader knows how far the other members are."""
    membership, applied = group.membership, group.snapshot()
    page: dict[str, Any] = {
        "id": peer_id(group.me),
        "state": "LEADER" if group.is_leader else "FOLLOWER",
        "size": len(membership.voters),
        "quorum_needed": membership.quorum,
        "committed": group.commit_index,
        "applied": applied.index,
    }
    if group.recovering:
        page["catching_up"] = True
    if group.leader:
        page["leader"] = peer_id(group.leader)
    page |= {"ever_had_leader": bool(group.leader or group.commit_index), "term": group.term}
    if applied.index == group.last_index:
        page["pterm"] = applied.last_term
    page |= {"pindex": group.last_index, "system_account": True, "traffic_account": TRAFFIC_ACCOUNT}
    peers = {peer_id(name): {"name": name, "known": True} for name in membership.members if name != group.me}
    for each in group.progress():
        if each.name != group.me:
            seen = {"last_replicated_index": each.match, "last_seen": format_duration(each.contact_ns)}
            peers[peer_id(each.name)] |= seen
    return page | {"peers": peers}


def _all_health(jetstream: Streams, only: str, damages: Mapping[tuple[str, str], str]) -> Health:
    lacking = jetstream.node.shown.unhealthy()
    if lacking:
        return Health(503, lacking, "JETSTREAM")
    for account, serving in jetstream.served.items():
        if only not in ("", account):
            continue
        for name, reason in serving.engine.offline.items():
            return _broken(account, name, reason)
        for stream in serving.engine.streams.values():
            if stream.failed is not None:
                return _broken(account, stream.name, stream.failed.description)
    for (account, name), damage in damages.items():
        if only in ("", account):
            return _damaged(account, name, damage)
    return Health(200)


def _streams_health(
    engine: Engine, account: str, name: str, consumer: str, damages: Mapping[tuple[str, str], str]
) -> Health:
    if name in engine.offline:
        return _broken(account, name, engine.offline[name])
    if (dormant := engine.dormant.get(name)) is not None and (not consumer or consumer in dormant.consumer_names):
        return Health(200)
    stream = engine.streams.get(name)
    if stream is None:
        return Health(404, f'JetStream stream "{name}" not found on account "{account}"', "STREAM", account, name)
    if stream.failed is not None:
        return _broken(account, name, stream.failed.description)
    if consumer and consumer not in stream.consumers:
        reason = f'JetStream consumer "{consumer}" not found for stream "{name}" on account "{account}"'
        return Health(404, reason, "CONSUMER", account, name, consumer)
    if damage := damages.get((account, name)):
        return _damaged(account, name, damage)
    return Health(200)


def _broken(account: str, name: str, reason: str) -> Health:
    return Health(503, f"JetStream stream '{account} > {name}' takes no messages: {reason}", "STREAM", account, name)


def _damaged(account: str, name: str, damage: str) -> Health:
    return Health(503, f"old messages of JetStream stream '{account} > {name}': {damage}", "STREAM", account, name)


def indented(page: dict[str, Any]) -> Steps[bytes]:
    """Encode /jsz as indented JSON. Its streams are replaced by their places."""
    shown: list[bytes] = []
    for account in page.get("account_details", ()):
        pieces = []
        for some in _parts(account.get("stream_detail", ()), SHOWN_AT_ONCE):
            text = msgspec.json.format(dumps(some), indent=2)
            pieces.append(text[1:-2].replace(b"\n", b"\n      "))  # no string contains a line break
            yield
        if pieces:
            account["stream_detail"] = f"{len(shown)}"
            shown.append(b"[%b\n      ]" % b",".join(pieces))
    whole = msgspec.json.format(dumps(page), indent=2)
    for at, text in enumerate(shown):
        whole = whole.replace(b'"stream_detail": "%d"' % at, b'"stream_detail": ' + text, 1)
        yield
    return whole


def compact(page: dict[str, Any]) -> Steps[dict[str, Any]]:
    """Return /jsz with its streams encoded as JSON."""
    for account in page.get("account_details", ()):
        pieces: list[msgspec.Raw] = []
        for some in _parts(account.get("stream_detail", ()), SHOWN_AT_ONCE):
            pieces += [msgspec.Raw(dumps(each)) for each in some]
            yield
        if pieces:
            account["stream_detail"] = pieces
    return page


def _parts(items: Sequence[T], number: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), number):
        yield items[at : at + number]


def _streams(served: Iterable[Serving]) -> Iterator[Stream | Dormant]:
    for serving in served:
        yield from serving.engine.shown()


def _api(served: Iterable[Serving], level: int) -> dict[str, int]:
    """Return the counters of the API; `internal_errors`, which nats-server does not have, only when there were any."""
    calls = [serving.api for serving in served]
    page = {"level": level, "total": sum(one.total for one in calls), "errors": sum(one.errors for one in calls)}
    internal = sum(one.internal_errors for one in calls)
    return page | ({"internal_errors": internal} if internal else {})


def _usage(streams: Iterable[Stream | Dormant]) -> dict[str, int]:
    """Return the bytes stored and reserved."""
    page = dict.fromkeys(("memory", "storage", "reserved_memory", "reserved_storage"), 0)
    for stream in streams:
        kind = "memory" if stream.config.storage == "memory" else "storage"
        page[kind] += stream.store.bytes
        page[f"reserved_{kind}"] += stream.config.reserved_bytes
    return page


def _summed(figures: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return figures of streams added up by name."""
    total: dict[str, int] = {}
    for each in figures:
        for name, number in each.items():
            total[name] = total.get(name, 0) + number
    return total


def totals(streams: Collection[Stream | Dormant]) -> dict[str, int]:
    """Return the number and size of streams."""
    return {
        "streams": len(streams),
        "consumers": sum(stream.consumer_count for stream in streams),
        "messages": sum(stream.store.msgs for stream in streams),
        "bytes": sum(stream.store.bytes for stream in streams),
    }
