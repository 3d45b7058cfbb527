"""`$JS.API.STREAM.>`: requests about streams.

Belongs here: STREAM.CREATE, UPDATE, DELETE, INFO, NAMES, LIST, SNAPSHOT and RESTORE (docs/internals/api.md#streams):
reading and checking the request, proposing the change, and the choice of the node that answers. `stream/rules.py` has
the rules of configurations.

    CREATE   meta leader: check, place, propose; then the stream's first leader answers.
    UPDATE   stream leader: check against its consumers; meta leader: check against the other streams, place, propose;
             then the stream's leader logs it in the stream and answers.
    DELETE   meta leader: propose; it answers once the connected nodes have removed the files.

A server without a cluster is all of these nodes.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.account.api.find import find, info_of, info_of_new
from lakestream.account.api.subject_pages import SUBJECTS_LIMIT, Page, page_of
from lakestream.account.backup.restore_target import AssignAsked, RestoreTargets
from lakestream.account.engine import Engine
from lakestream.account.schemas import settings
from lakestream.meta.assignments import Applied, Assignment, AssignStream, ChangeStream
from lakestream.meta.inventory import AccountInventory
from lakestream.meta.meta import failure
from lakestream.meta.node import CALL_TIMEOUT_NS, decode_failure, encode_failure
from lakestream.meta.ports import of_account
from lakestream.protocol.accounts import tier_of
from lakestream.protocol.api.errors import ApiError, api_error, invalid
from lakestream.protocol.api.jsonio import Int, dumps
from lakestream.protocol.api.request import Request, Where
from lakestream.protocol.decoding import JsonDecoder, PackDecoder
from lakestream.protocol.subjects import overlaps
from lakestream.stream import rules as stream_rules
from lakestream.stream.assembly import Stream
from lakestream.stream.core import account_limits, offline
from lakestream.stream.core.config import StreamConfig, StreamConfigRequest
from lakestream.stream.core.operations import UpdateStream
from lakestream.stream.info import state_shown
from lakestream.stream.mirroring.origin_rules import check_filters

if TYPE_CHECKING:
    from lakestream.account.backup.restores import Restores
    from lakestream.account.backup.snapshots import Snapshots
    from lakestream.stream.dormant import Dormant

NAMES_LIMIT = 1024
"""Names in one reply of STREAM.NAMES."""
LIST_LIMIT = 256
"""Streams in one reply of STREAM.LIST."""

_PAGE = {"total": 0, "offset": 0, "limit": 0}

CREATED = "created"
"""Stage of a STREAM.CREATE: the stream was assigned for it."""
EXISTING = "existing"
"""Stage of a STREAM.CREATE: the stream existed with the same configuration."""

CHANGE = "stream.change"
"""The call with which a stream's leader proposes a new configuration to the meta leader."""
INFOS = "stream.infos"
"""The call that asks a node for StreamInfo of the streams that it leads."""
LIST_WAIT_NS = 2_000_000_000
"""Longest wait of STREAM.LIST for the streams' leaders (2 s)."""
_STREAM_CONFIG = JsonDecoder(StreamConfig)


Complete = Callable[[StreamConfig, StreamConfig | None], StreamConfig]
"""Adds defaults to a requested configuration; takes that of the existing stream, too, if there is one."""


Change = Callable[[Request, StreamConfigRequest, Callable[[], None]], None]
"""Goes on with a request for a new configuration; the last argument is called after its answer."""


class ChangeAsked(msgspec.Struct, frozen=True):
    """The body of `CHANGE`: the new configuration as JSON, and the stream's leader."""

    uid: str
    config: bytes
    leader: str


_CHANGE_ASKED = PackDecoder(ChangeAsked)


class StreamInfoRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of STREAM.INFO."""

    offset: Int = 0
    deleted_details: bool = False
    subjects_filter: str = ""


class StreamNamesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of STREAM.NAMES and STREAM.LIST."""

    offset: Int = 0
    subject: str = ""


class _Stated(msgspec.Struct):
    """The field of a configuration that names its storage."""

    storage: str = ""


class StreamApi:
    """Serves everything under `$JS.API.STREAM.`."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._node = engine, engine.node
        self._events = engine.events
        self._creating: set[str] = set()
        """Names of streams whose creation is proposed and not applied yet."""
        calls = engine.node.peers
        calls.serve(of_account(CHANGE, engine.account), self._change_asked)
        calls.serve(of_account(INFOS, engine.account), self._infos_asked)
        self._targets = RestoreTargets(engine, self._assign_restored, self._restored)

    # ------------------------------------------------------------------ create, update, delete
    def create(self, request: Request) -> None:
        if request.stage:
            self._answer_by_leader(request, request.stage)
            return
        wanted = request.parse(StreamConfigRequest)
        name = request.tokens[0]
        if wanted.name != name:
            raise api_error(10056)
        stream_rules.check_create(wanted)
        self._in_turn(name, request, lambda finished: self._with_schemas(request, wanted, finished, self._create_next))

    def _with_schemas(
        self, request: Request, wanted: StreamConfigRequest, finished: Callable[[], None], then: Change
    ) -> None:
        """Call `then` once the schemas that a stream names were looked up."""
        metadata, node = wanted.metadata, self._node
        if not settings.concerns(metadata):
            then(request, wanted, finished)
            return
        existing = node.find(self._engine.account, wanted.name)
        before = {} if existing is None else node.config_of(existing).metadata

        async def work() -> None:
            bus, clock, is_mirror = self._engine.bus, self._engine.clock, wanted.mirror is not None
            try:
                await settings.check(bus, clock, metadata, before, is_mirror)
                then(request, wanted, finished)
            except ApiError as error:
                request.fail(error)
                finished()
            except Exception as error:  # a bug must not block the later requests for good
                request.crash(error)
                finished()

        self._engine.clock.spawn(work())

    def _create_next(self, request: Request, wanted: StreamConfigRequest, finished: Callable[[], None]) -> None:
        node, account = self._node, self._engine.account
        config = wanted.config()
        self._check_account(config, lambda: stated(request))
        config = self._checked(config, self._engine.shared.lake.created, wanted.pedantic)
        existing = node.find(account, config.name)
        if existing is not None:
            if why := node.shown.trouble(existing):
                raise api_error(10194, err=why)
            if not self._is_assigned(config):
                raise api_error(10058)
            self._answer_by_leader(request, EXISTING)
            finished()
            return
        if config.name in self._creating:
            raise api_error(10058)
        self._check_room(config, new=True)

        def assigned(error: ApiError | None) -> None:
            if error is None:
                self._answer_by_leader(request, CREATED)
            elif error.err_code == 10008:  # the entry may be applied all the same
                self._engine.clock.call_soon(lambda: self._create_again(request, error))
            elif error.err_code == 10058 and self._is_assigned(config):  # by the entry of an earlier attempt
                self._answer_by_leader(request, EXISTING)
            else:
                request.fail(error)
            finished()

        self._assign(secrets.token_hex(8), config, msgspec.json.encode(config), "", assigned)

    def _create_again(self, request: Request, error: ApiError) -> None:
        """Have the next meta leader create a stream, or answer that it exists: this node has lost its leadership."""
        if self._node.meta.leading:
            request.fail(error)
        else:
            create = functools.partial(request.run, functools.partial(self.create, request))
            self._node.requests.again(request, Where.META, create)

    def _is_assigned(self, config: StreamConfig) -> bool:
        """Return True if there is a stream with this configuration."""
        existing = self._node.find(self._engine.account, config.name)
        return existing is not None and self._node.config_of(existing) == config

    def _assign(
        self, uid: str, config: StreamConfig, encoded: bytes, restoring: str, done: Callable[[ApiError | None], None]
    ) -> None:
        """Place a new stream and propose its assignment; call `done` with the error, if any. Raise ApiError 10005."""
        node, account, name = self._node, self._engine.account, config.name
        peers, now = node.placing.place(config), self._engine.clock.now()
        self._creating.add(name)
        node.inventory.propose(account, config)

        def applied(outcome: Applied | ApiError) -> None:
            self._creating.discard(name)
            node.inventory.proposed(account, name)
            done(failure(outcome, 10058))

        node.meta.propose(AssignStream(uid, account, name, encoded, peers, now, restoring), applied)

    def _answer_by_leader(self, request: Request, stage: str) -> None:
        """Have the stream's leader answer with StreamInfo, on this node or another, as soon as it is known."""
        request.stage = stage

        def answer() -> None:
            name = request.tokens[0]
            shown = info_of(self._node, find(self._engine, name))
            if stage == CREATED:
                self._events.stream_action(name, "CREATED", "create")
            created = stage == CREATED or not self._node.clustered
            request.respond({**shown, "did_create": True} if created else shown)

        def answer_applied() -> None:
            self._engine.when_applied([find(self._engine, request.tokens[0])], lambda: request.run(answer))

        def answer_decided() -> None:
            assignment = self._node.find(self._engine.account, request.tokens[0])
            if assignment is None:
                raise api_error(10059)
            self._events.stream_action(assignment.name, "CREATED", "create")
            request.respond({**info_of_new(self._node, assignment), "did_create": True})

        if stage == CREATED:  # the stream exists, whatever its leader does
            requests, decided = self._node.requests, functools.partial(request.run, answer_decided)
            requests.dispatch(request, Where.STREAM, lambda: request.run(answer), decided)
        else:
            self._node.requests.dispatch(request, Where.STREAM, lambda: request.run(answer_applied))

    def _check_account(self, config: StreamConfig, is_stated: Callable[[], bool] = lambda: True) -> None:
        """Check the account's limits for a new stream, before the rest of the configuration. Raise ApiError.

        `is_stated`: returns True if it names its storage; otherwise its room is checked later, as in nats-server.
        """
        limits = account_limits.of_tier(self._engine.limits, config)
        if limits.max_streams > 0 and not self._taken(config.name):
            account_limits.check_streams(limits, self._count(config))
        account_limits.check_consumers(limits, config.max_consumers)
        if limits.storage(config.storage) >= 0 and is_stated():
            self._check_reserved(config)

    def _check_reserved(self, config: StreamConfig) -> None:
        """Check that the account may reserve the `max_bytes` of all replicas of the stream. Raise ApiError."""
        whole, copies = self._engine.limits, self._node.placing.copies
        limits = account_limits.of_tier(whole, config)
        if limits.storage(config.storage) < 0:
            return
        # The limits of a tier are for one replica of each stream, those of an account for all replicas.
        of = (lambda _: 1) if whole.tiers else copies
        tier = tier_of(config.num_replicas) if whole.tiers else ""
        reserved = self._streams.reserved(config.storage, of, tier, beside=config.name)
        account_limits.check_reserved(limits, config, reserved, of(config.num_replicas))

    def _count(self, config: StreamConfig) -> int:
        """Count the account's streams, including those being created, as far as they are in the same tier."""
        if self._engine.limits.tiers:
            return self._streams.streams(tier_of(config.num_replicas), beside=config.name)
        return self._streams.streams()

    @property
    def _streams(self) -> AccountInventory:
        """Return the account's streams, including those being created or changed."""
        return self._node.inventory.of(self._engine.account)

    def update(self, request: Request) -> None:
        wanted = request.parse(StreamConfigRequest)
        name = request.tokens[0]
        if wanted.name != name:
            self._checked(wanted.config(), None, wanted.pedantic)
            raise api_error(10056)
        self._in_turn(name, request, lambda finished: self._with_schemas(request, wanted, finished, self._update_next))

    def _update_next(self, request: Request, wanted: StreamConfigRequest, finished: Callable[[], None]) -> None:
        checked = self._checked(wanted.config(), self._engine.shared.lake.updated, wanted.pedantic)
        stream = find(self._engine, checked.name)
        stream.mirroring.check_update(checked)
        limited = {name: consumer.config for name, consumer in stream.consumers.items()}
        encoded = msgspec.json.encode(stream_rules.updated(stream.config, checked, limited))
        updating = self._node.local.updating
        updating.add(stream.uid)

        def ended() -> None:
            updating.discard(stream.uid)
            finished()

        def applied(outcome: object) -> None:
            if isinstance(outcome, ApiError):
                request.fail(outcome)
            else:
                self._events.stream_action(stream.name, "UPDATED", "modify")
                request.respond(info_of(self._node, stream, domain=self._engine.domain))
            ended()

        def logged(body: bytes | None, why: str) -> None:
            error = decode_failure(body)
            if error is not None:
                request.fail(error)
                ended()
                self._node.local.not_updated(stream.uid)
            else:
                stream.propose(UpdateStream(encoded), applied)

        leader = self._node.meta_leader()
        if not leader:
            updating.discard(stream.uid)
            raise api_error(10008)
        asked = msgspec.msgpack.encode(ChangeAsked(stream.uid, encoded, self._node.me))
        method = of_account(CHANGE, self._engine.account)
        self._node.peers.call(leader, method, asked, logged, CALL_TIMEOUT_NS)

    def _change_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        asked = _CHANGE_ASKED.decode(body)
        inventory, account, config = self._node.inventory, self._engine.account, _STREAM_CONFIG.decode(asked.config)
        name = config.name

        def applied(outcome: Applied | ApiError) -> None:
            inventory.proposed(account, name)
            answer(encode_failure(failure(outcome, 10059)))

        try:
            op = self._changed(asked)
        except ApiError as error:
            answer(encode_failure(error))
            return
        inventory.propose(account, config)
        self._node.meta.propose(op, applied)

    def _changed(self, asked: ChangeAsked) -> ChangeStream:
        """Return the meta entry for a change; on the meta leader. Raise ApiError."""
        node = self._node
        if not node.meta.leading:
            raise api_error(10008)
        assignment = node.meta.state.by_uid.get(asked.uid)
        if assignment is None or assignment.account != self._engine.account:
            raise api_error(10059)
        old, new = node.config_of(assignment), _STREAM_CONFIG.decode(asked.config)
        whole = self._engine.limits
        limits = account_limits.of_tier(whole, new)
        if not account_limits.in_tier(whole, old, new):
            account_limits.check_streams(limits, self._count(new))
        if new.max_consumers != old.max_consumers:
            account_limits.check_consumers(limits, new.max_consumers)
        copies = node.placing.copies
        grows = new.reserved_bytes * copies(new.num_replicas) > old.reserved_bytes * copies(old.num_replicas)
        self._check_room(new, reserves=grows)
        node.placing.check_growth(assignment.peers, old, new)
        if new.num_replicas != old.num_replicas and new.placement != old.placement:
            raise api_error(10123)
        peers = assignment.peers
        if (new.num_replicas, new.placement) != (old.num_replicas, old.placement) or len(peers) != new.num_replicas:
            # Keep the leader where possible.
            keep = sorted(peers, key=lambda name: name != asked.leader)
            peers = node.placing.place(new, keep=keep)
        return ChangeStream(asked.uid, asked.config, peers)

    def _checked(self, config: StreamConfig, complete: Complete | None, pedantic: bool) -> StreamConfig:
        """Return a requested configuration with its defaults, by `complete` those of the lake. Raise ApiError."""
        if complete is not None:
            existing = self._node.find(self._engine.account, config.name)
            config = complete(config, None if existing is None else self._node.config_of(existing))
        config = self._completed(config, self._node.placing.several, pedantic)
        if offline.refusal(msgspec.json.encode(config)):  # no member could apply it
            raise api_error(10049, err="error creating store for stream")
        return config

    def _completed(self, wanted: StreamConfig, clustered: bool, pedantic: bool = False) -> StreamConfig:
        """Return a configuration with its defaults. Raise ApiError if rules, limits or the lake reject it."""
        config = stream_rules.checked(
            wanted,
            pedantic=pedantic,
            window_limit_ns=self._engine.options.duplicate_window_ns,
            clustered=clustered,
            limits=account_limits.of_tier(self._engine.limits, wanted),
            find=functools.partial(self._origin, wanted.name),
        )
        refusal = self._engine.shared.lake.refusal(config)
        if refusal is not None:
            raise invalid(refusal)
        return config

    def _origin(self, name: str, origin: str) -> StreamConfig | None:
        """Return the configuration of stream `origin`, if stream `name` may mirror or source it."""
        return self._streams.configs.get(origin) if origin != name else None

    def _check_room(self, config: StreamConfig, *, new: bool = False, reserves: bool = True) -> None:
        """Check storage and subjects against all other streams, including those being created. Raise ApiError.

        `new`: the stream is to be created. `reserves`: it needs more storage than before.
        """
        if reserves:
            self._check_reserved(config)
            own, inventory = (self._engine.account, config.name), self._node.inventory
            self._node.placing.check_storage(config, lambda: inventory.all_reserved(config.storage, beside=own))
        if new:
            check_filters(config)
        if self._streams.overlaps(config):
            raise api_error(10065)

    def delete(self, request: Request) -> None:
        if not request.empty_body:
            raise api_error(10038)
        name = request.tokens[0]

        def delete(finished: Callable[[], None]) -> None:
            def deleted(outcome: ApiError | None) -> None:
                finished()
                request.succeed(outcome)

            self._engine.delete_stream(name, deleted)

        self._in_turn(name, request, delete)

    def _in_turn(self, name: str, request: Request, work: Callable[[Callable[[], None]], None]) -> None:
        """Run `work(finished)` when no other change of this stream is in progress; see `ChangeQueues.take`."""
        self._engine.changes.take(f"S {self._engine.account} {name}", request, work)

    # ------------------------------------------------------------------ info
    def info(self, request: Request) -> None:
        if self._node.clustered:
            find(self._engine, request.tokens[0], led=False)
        asked = request.parse_if_json(StreamInfoRequest, "JSApiStreamInfoRequest")
        dormant = self._engine.dormant.get(request.tokens[0])
        if dormant is not None:
            self._answer_info(request, dormant, asked, (0, {}))
            return
        stream = find(self._engine, request.tokens[0], led=False)
        self._engine.when_applied([stream], lambda: request.run(lambda: self._info_applied(request, asked)))

    def _info_applied(self, request: Request, asked: StreamInfoRequest) -> None:
        stream = find(self._engine, request.tokens[0], led=False)
        index, pattern, offset = stream.store.subjects, asked.subjects_filter.encode(), max(0, asked.offset)
        if not pattern:
            self._answer_info(request, stream, asked, (0, {}))
            return

        def answer() -> Iterator[None]:
            page = yield from page_of(index, pattern, offset)
            self._answer_info(request, stream, asked, page)

        self._engine.shared.share.run_in_steps(request.steps(answer()))

    def _answer_info(self, request: Request, stream: Stream | Dormant, asked: StreamInfoRequest, found: Page) -> None:
        total, subjects = found
        page = {"total": total, "offset": max(0, asked.offset), "limit": SUBJECTS_LIMIT} if total else _PAGE
        state = state_shown(stream, deleted=asked.deleted_details, subjects=subjects)
        engine = self._engine
        more = self._node.shown.alternates(engine.account, stream.name, engine.domain)
        leader = {"leader": engine.server_name}
        info = info_of(self._node, stream, state=state, domain=engine.domain, cluster=leader, alternates=more)
        request.respond({**page, **info})

    def _page(self, request: Request, name: str, limit: int) -> tuple[dict[str, int], list[Assignment]]:
        asked = request.parse_if_json(StreamNamesRequest, name)
        found = self._node.assignments(self._engine.account)
        if asked.subject:
            pattern = asked.subject.encode()
            found = [
                each
                for each in found
                if any(overlaps(subject.encode(), pattern) for subject in self._node.config_of(each).subjects)
            ]
        offset = min(max(0, asked.offset), len(found))
        return {"total": len(found), "offset": offset, "limit": limit}, found[offset : offset + limit]

    def names(self, request: Request) -> None:
        page, found = self._page(request, "JSApiStreamNamesRequest", NAMES_LIMIT)
        request.respond({**page, "streams": [each.name for each in found] or None})

    def list_streams(self, request: Request) -> None:
        page, found = self._page(request, "JSApiStreamListRequest", LIST_LIMIT)
        if not found and self._node.clustered:
            page["total"] = 0
        node, method = self._node, of_account(INFOS, self._engine.account)
        by_leader: dict[str, list[str]] = {}
        for each in found:
            leader = node.stream_leader(each.uid)
            if leader:
                by_leader.setdefault(leader, []).append(each.name)

        def answered(bodies: list[bytes]) -> None:
            infos: dict[str, msgspec.Raw] = {}
            for body in bodies:
                infos.update(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
            fields: dict[str, Any] = {**page, "streams": [infos[each.name] for each in found if each.name in infos]}
            missing = [each for each in found if each.name not in infos]
            if missing:
                fields["missing"] = [each.name for each in missing]
            if reasons := {each.name: why for each in missing if (why := node.shown.trouble(each))}:
                fields["offline"] = reasons
            request.respond(fields)

        asked = {leader: msgspec.json.encode(names) for leader, names in by_leader.items()}
        node.ask_each(method, asked, answered, LIST_WAIT_NS)

    def _infos_asked(self, node: str, body: bytes, answer: Callable[[bytes], None]) -> None:
        engine, names = self._engine, msgspec.json.decode(body, type=list[str])
        streams = [each for name in names if (each := engine.streams.get(name)) is not None]
        resting = [one for name in names if (one := engine.dormant.get(name)) is not None]
        found: list[Stream | Dormant] = [*streams, *resting]

        def shown(stream: Stream | Dormant) -> dict[str, Any]:
            return info_of(self._node, stream, versions=False, domain=engine.domain)

        engine.when_applied(
            streams,
            lambda: answer(dumps({each.name: shown(each) for each in found if each.leading})),
        )

    # ------------------------------------------------------------------ backups
    # Archives are loaded with the first backup: most servers never make one.
    @functools.cached_property
    def _snapshots(self) -> Snapshots:
        from lakestream.account.backup.snapshots import Snapshots

        return Snapshots(self._engine)

    @functools.cached_property
    def _restores(self) -> Restores:
        from lakestream.account.backup.restores import Restores

        return Restores(self._engine, self._targets)

    def snapshot(self, request: Request) -> None:
        if request.empty_body:
            raise api_error(10003)
        from lakestream.account.backup.snapshots import SnapshotRequest

        stream = find(self._engine, request.tokens[0])
        asked = request.parse(SnapshotRequest, "JSApiStreamSnapshotRequest")

        def begin() -> None:
            self._snapshots.begin(request, asked, find(self._engine, request.tokens[0]))

        self._engine.when_applied([stream], lambda: request.run(begin))

    def restore(self, request: Request) -> None:
        if request.empty_body:
            raise api_error(10003)
        from lakestream.account.backup.restores import RestoreRequest

        asked, name = request.parse(RestoreRequest, "JSApiStreamRestoreRequest"), request.tokens[0]
        if asked.config.name not in ("", name):
            raise api_error(10056)
        wanted = msgspec.structs.replace(asked.config, name=name)
        self._check_account(wanted, lambda: False)
        config = self._completed(wanted, clustered=True)  # its room is checked at the end, as by nats-server
        if self._taken(name):
            raise api_error(10130)
        kept = {key: value for key, value in wanted.metadata.items() if key not in stream_rules.DYNAMIC_METADATA}
        self._restores.begin(request, msgspec.structs.replace(config, metadata=kept), asked.state)

    def _taken(self, name: str) -> bool:
        return self._node.meta.state.find(self._engine.account, name) is not None

    def _assign_restored(self, asked: AssignAsked, done: Callable[[ApiError | None], None]) -> None:
        """Propose the assignment of a stream that a node restores; on the meta leader. Raise ApiError."""
        node, config = self._node, _STREAM_CONFIG.decode(asked.config)
        if not node.meta.leading:
            raise api_error(10008)
        if config.num_replicas > 1 and not node.placing.several:
            raise api_error(10074)
        if self._taken(config.name) or config.name in self._creating:
            raise api_error(10058)
        self._check_account(config)
        self._check_room(config)
        self._assign(asked.uid, config, asked.config, asked.node, done)

    def _restored(self, stream: Stream) -> dict[str, Any]:
        """Send the advisory for a restored stream, and return its StreamInfo."""
        self._events.stream_action(stream.name, "CREATED", "create")
        return info_of(self._node, stream)


def stated(request: Request) -> bool:
    """Return True if the configuration in the body names its storage."""
    return request.parse(_Stated, strict=False).storage != ""
