"""Streams as the API manages them in a cluster.

Belongs here: what STREAM.CREATE, UPDATE, DELETE, NAMES and LIST do when several nodes are concerned: checking against
all assignments, choosing nodes, logging the assignment, and who gives the answer. Everything else is api/streams.py's,
on the stream's leader.

    CREATE   leader of the meta group: check, place, log; then the stream's first leader answers.
    UPDATE   the stream's leader: check against its consumers; the leader of the meta group: check against the other
             streams, place, log; then the stream's leader logs it in the stream and answers.
    DELETE   leader of the meta group: log; it answers once the nodes that are there have let go of the files.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.account.api.streams import LIST_LIMIT, NAMES_LIMIT, StreamApi, StreamNamesRequest, stated
from lakestream.account.backup.restore_cluster import AssignAsked, ClusterRestores
from lakestream.account.backup.restores import Target
from lakestream.meta.alternates import Alternates
from lakestream.meta.assignments import Applied, Assignment, AssignStream, ChangeStream, RemoveStream
from lakestream.meta.node import CALL_TIMEOUT_NS, CallFailed, JetStreamCluster
from lakestream.meta.placement import choose
from lakestream.meta.ports import of_account
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.api.request import Request, Where
from lakestream.protocol.subjects import overlaps
from lakestream.stream import rules as stream_rules
from lakestream.stream.assembly import Stream
from lakestream.stream.core import account_limits
from lakestream.stream.core.config import StreamConfig, StreamConfigRequest
from lakestream.stream.core.confirming import when_all_applied
from lakestream.stream.core.operations import UpdateStream
from lakestream.stream.mirroring.origin_rules import check_filters

if TYPE_CHECKING:
    from lakestream.account.engine import Engine

CREATED = "created"
"""Stage of a STREAM.CREATE: the stream was assigned for it."""
EXISTING = "existing"
"""Stage of a STREAM.CREATE: the stream was there, with the same configuration."""

CHANGE = "stream.change"
"""The call by which a stream's leader has a new configuration logged by the meta group."""
INFOS = "stream.infos"
"""The call that asks a node for StreamInfo of the streams that it leads."""
LIST_WAIT_NS = 2_000_000_000
"""How long STREAM.LIST waits for the leaders of the streams."""


class ChangeAsked(msgspec.Struct, frozen=True):
    """The body of `CHANGE`: the new configuration as JSON, and who leads the stream."""

    uid: str
    config: bytes
    leader: str


class ClusterStreamApi(StreamApi):
    """The stream part of the API of a node in a cluster."""

    def __init__(self, engine: Engine, cluster: JetStreamCluster) -> None:
        super().__init__(engine)
        self._cluster = cluster
        self._mirrors = Alternates(cluster)
        self._creating: dict[str, StreamConfig] = {}
        self._changing: dict[str, StreamConfig] = {}
        cluster.calls.serve(of_account(CHANGE, engine.account), self._change_asked)
        cluster.calls.serve(of_account(INFOS, engine.account), self._infos_asked)
        self._cluster_restores = ClusterRestores(engine, cluster, self._assign_restored, self._restored)

    # ------------------------------------------------------------------ create
    def _create_next(self, request: Request, wanted: StreamConfigRequest, over: Callable[[], None]) -> None:
        self._check_account(wanted.config(), stated=stated(request))
        cluster, config = self._cluster, self._checked(wanted)
        existing = cluster.find(self._engine.account, config.name)
        if existing is not None:
            if cluster.config_of(existing) != config:
                raise api_error(10058)
            over()
            self.answer_by_leader(request, EXISTING)
            return
        self._check_room(config, new=True)
        peers = choose(cluster.wanted(config), cluster.candidates())
        encoded, now = msgspec.json.encode(config), self._engine.clock.now()
        op = AssignStream(secrets.token_hex(8), self._engine.account, config.name, encoded, peers, now)
        self._creating[config.name] = config

        def applied(outcome: Applied | ApiError) -> None:
            del self._creating[config.name]
            over()
            if isinstance(outcome, ApiError):
                request.fail(outcome)
            elif outcome.refused:
                request.fail(api_error(10058))
            else:
                self.answer_by_leader(request, CREATED)

        cluster.meta.propose(op, applied)

    def _create(self, request: Request) -> None:
        if request.stage:
            self.answer_by_leader(request, request.stage)
        else:
            super()._create(request)

    def answer_by_leader(self, request: Request, stage: str) -> None:
        """Have the stream's leader answer with StreamInfo, here or elsewhere, as soon as there is one."""
        request.stage = stage

        def answer() -> None:
            shown = self._info_of(self.find(request.tokens[0]))
            request.respond({**shown, "did_create": True} if stage == CREATED else shown)
            if stage == CREATED:
                self._events.stream_action(request.tokens[0], "CREATED", "create")

        self._cluster.requests.dispatch(request, Where.STREAM, lambda: request.run(answer))

    # ------------------------------------------------------------------ restore
    def _taken(self, name: str) -> bool:
        return self._cluster.meta.state.find(self._engine.account, name) is not None

    def _restore_target(self, config: StreamConfig) -> Target:
        return self._cluster_restores.target(config)

    def _assign_restored(self, asked: AssignAsked, done: Callable[[ApiError | None], None]) -> None:
        """Log the assignment of a stream that a node restores, on the leader of the meta group. Raises ApiError."""
        cluster, config = self._cluster, msgspec.json.decode(asked.config, type=StreamConfig)
        if not cluster.meta.leading:
            raise api_error(10008)
        if self._taken(config.name) or config.name in self._creating:
            raise api_error(10058)
        self._check_account(config)
        self._check_room(config)
        peers = choose(cluster.wanted(config), cluster.candidates())
        now, account = self._engine.clock.now(), self._engine.account
        op = AssignStream(asked.uid, account, config.name, asked.config, peers, now, asked.node)
        self._creating[config.name] = config

        def applied(outcome: Applied | ApiError) -> None:
            del self._creating[config.name]
            if isinstance(outcome, ApiError):
                done(outcome)
            else:
                done(api_error(10058) if outcome.refused else None)

        cluster.meta.propose(op, applied)

    # ------------------------------------------------------------------ update
    def _update_next(self, request: Request, wanted: StreamConfigRequest, over: Callable[[], None]) -> None:
        checked = self._checked(wanted)
        stream = self.find(checked.name)
        stream.mirroring.check_update(checked)
        limited = {name: consumer.config for name, consumer in stream.consumers.items()}
        encoded = msgspec.json.encode(stream_rules.updated(stream.config, checked, limited))
        updating = self._cluster.local.updating
        updating.add(stream.uid)

        def ended() -> None:
            updating.discard(stream.uid)
            over()

        def applied(outcome: object) -> None:
            if isinstance(outcome, ApiError):
                request.fail(outcome)
            else:
                request.respond(self._info_of(stream))
                self._events.stream_action(stream.name, "UPDATED", "modify")
            ended()

        def logged(body: bytes | None, why: str) -> None:
            failed = msgspec.msgpack.decode(body, type=CallFailed | None) if body is not None else None
            if body is None or failed is not None:
                request.fail(failed.error() if failed is not None else api_error(10008))
                ended()
                self._cluster.local.not_updated(stream.uid)
            else:
                stream.propose(UpdateStream(encoded), applied)

        leader = self._cluster.meta_leader()
        if not leader:
            updating.discard(stream.uid)
            raise api_error(10008)
        asked = msgspec.msgpack.encode(ChangeAsked(stream.uid, encoded, self._cluster.me))
        method = of_account(CHANGE, self._engine.account)
        self._cluster.calls.call(leader, method, asked, logged, CALL_TIMEOUT_NS)

    def _change_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        asked = msgspec.msgpack.decode(body, type=ChangeAsked)

        def fail(error: ApiError) -> None:
            answer(msgspec.msgpack.encode(CallFailed(error.code, error.err_code, error.description)))

        def applied(outcome: Applied | ApiError) -> None:
            self._changing.pop(asked.uid, None)
            if isinstance(outcome, ApiError):
                fail(outcome)
            elif outcome.refused:
                fail(api_error(10059))
            else:
                answer(msgspec.msgpack.encode(None))

        try:
            op = self._changed(asked)
        except ApiError as error:
            fail(error)
            return
        self._changing[asked.uid] = msgspec.json.decode(asked.config, type=StreamConfig)
        self._cluster.meta.propose(op, applied)

    def _changed(self, asked: ChangeAsked) -> ChangeStream:
        """The entry for a change, on the leader of the meta group. Raises ApiError."""
        cluster = self._cluster
        if not cluster.meta.leading:
            raise api_error(10008)
        assignment = cluster.meta.state.by_uid.get(asked.uid)
        if assignment is None or assignment.account != self._engine.account:
            raise api_error(10059)
        old, new = cluster.config_of(assignment), msgspec.json.decode(asked.config, type=StreamConfig)
        if new.max_consumers != old.max_consumers:
            account_limits.check_consumers(self._engine.limits, new.max_consumers)
        grows = max(0, new.max_bytes) * new.num_replicas > max(0, old.max_bytes) * old.num_replicas
        self._check_room(new, reserves=grows)
        more = new.max_bytes - max(0, old.max_bytes)
        holding = [candidate for candidate in cluster.candidates() if candidate.name in assignment.peers]
        if more > 0 and not all(candidate.room(new.storage, more) for candidate in holding):
            raise api_error(10028 if new.storage == "memory" else 10047)
        if new.num_replicas != old.num_replicas and new.placement != old.placement:
            raise api_error(10123)
        peers = assignment.peers
        if (new.num_replicas, new.placement) != (old.num_replicas, old.placement) or len(peers) != new.num_replicas:
            # The leader stays when there is a choice.
            keep = sorted(peers, key=lambda name: name != asked.leader)
            peers = choose(cluster.wanted(new), cluster.candidates(), keep=keep)
        return ChangeStream(asked.uid, asked.config, peers)

    def _check_room(self, config: StreamConfig, *, new: bool = False, reserves: bool = True) -> None:
        """What the account may reserve, and subjects, that are still free beside its other streams."""
        if reserves:
            self._check_reserved(config)
        if new:
            check_filters(config)
        stream_rules.check_taken(config, self._others(config))

    def _count(self) -> int:
        return len(self._cluster.assignments(self._engine.account, restoring=True)) + len(self._creating)

    def _others(self, config: StreamConfig) -> list[StreamConfig]:
        cluster = self._cluster
        known = {
            each.name: cluster.config_of(each) for each in cluster.assignments(self._engine.account, restoring=True)
        }
        known |= {changing.name: changing for changing in self._changing.values()} | self._creating
        return [other for name, other in known.items() if name != config.name]

    # ------------------------------------------------------------------ delete
    def _delete_next(self, request: Request, name: str, over: Callable[[], None]) -> None:
        cluster = self._cluster
        assignment = cluster.find(self._engine.account, name)
        if assignment is None:
            raise api_error(10059)
        uid = assignment.uid

        def gone() -> None:
            over()
            request.succeed(None)

        def applied(outcome: Applied | ApiError) -> None:
            if isinstance(outcome, ApiError) or outcome.refused:
                cluster.drops.forget(uid)
                over()
                request.fail(outcome if isinstance(outcome, ApiError) else api_error(10059))
            else:
                cluster.drops.removed(uid)

        cluster.drops.wait(uid, {holder for holder in assignment.holders if cluster.nodes.alive(holder)}, gone)
        cluster.meta.propose(RemoveStream(uid), applied)

    # ------------------------------------------------------------------ names and list
    def _page(self, request: Request, name: str, limit: int) -> tuple[dict[str, int], list[Assignment]]:
        asked = request.parse_if_json(StreamNamesRequest, name)
        found = self._cluster.assignments(self._engine.account)
        if asked.subject:
            pattern = asked.subject.encode()
            found = [
                each
                for each in found
                if any(overlaps(subject.encode(), pattern) for subject in self._cluster.config_of(each).subjects)
            ]
        offset = min(max(0, asked.offset), len(found))
        return {"total": len(found), "offset": offset, "limit": limit}, found[offset : offset + limit]

    def _names(self, request: Request) -> None:
        page, found = self._page(request, "JSApiStreamNamesRequest", NAMES_LIMIT)
        request.respond({**page, "streams": [each.name for each in found] or None})

    def _list(self, request: Request) -> None:
        page, found = self._page(request, "JSApiStreamListRequest", LIST_LIMIT)
        if not found:
            page["total"] = 0  # as nats-server counts behind the end of the list
        cluster, method = self._cluster, of_account(INFOS, self._engine.account)
        by_leader: dict[str, list[str]] = {}
        for each in found:
            leader = cluster.stream_leader(each.uid)
            if leader:
                by_leader.setdefault(leader, []).append(each.name)
        infos: dict[str, msgspec.Raw] = {}
        waiting = set(by_leader)

        def answered(node: str, body: bytes | None) -> None:
            if body is not None:
                infos.update(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
            waiting.discard(node)
            if not waiting:
                respond()

        def respond() -> None:
            fields: dict[str, Any] = {**page, "streams": [infos[each.name] for each in found if each.name in infos]}
            missing = [each for each in found if each.name not in infos]
            if missing:
                fields["missing"] = [each.name for each in missing]
            if reasons := {each.name: why for each in missing if (why := cluster.refusal(each))}:
                fields["offline"] = reasons
            request.respond(fields)

        def ask(node: str, names: list[str]) -> None:
            body = msgspec.json.encode(names)
            cluster.calls.call(node, method, body, lambda got, why: answered(node, got), LIST_WAIT_NS)

        for node, names in by_leader.items():
            ask(node, names)
        if not by_leader:
            respond()

    def _infos_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        named = [self._engine.streams.get(name) for name in msgspec.json.decode(body, type=list[str])]
        streams = [each for each in named if each is not None]
        when_all_applied(
            streams, lambda: answer(dumps({each.name: self._listed_info(each) for each in streams if each.leading}))
        )

    def _alternates(self, stream: Stream) -> list[dict[str, str]]:
        return self._mirrors.of(self._engine.account, stream.name, self._engine.domain)

    def _listed_info(self, stream: Stream) -> dict[str, Any]:
        return self._info_of(stream, versions=False)
