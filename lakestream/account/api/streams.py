"""Streams as the API manages them.

Belongs here: STREAM.CREATE, UPDATE, INFO, NAMES, LIST, DELETE, PURGE, MSG.GET and MSG.DELETE: reading the request,
checking it against the stream, proposing the operation, answering (docs/internals/api.md#streams). What a configuration
may hold is in stream/rules.py.
"""

from __future__ import annotations

import functools
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.account.api import subject_pages
from lakestream.account.api.subject_pages import SUBJECTS_LIMIT, Page
from lakestream.account.backup.restore_local import LocalTarget
from lakestream.account.backup.restores import RestoreRequest, Restores, Target
from lakestream.account.backup.snapshots import SnapshotRequest, Snapshots
from lakestream.account.get import query
from lakestream.account.get.query import MsgGetRequest
from lakestream.log.format.errors import LogError
from lakestream.log.format.record import Record
from lakestream.protocol.api.errors import ApiError, api_error, for_clients, invalid
from lakestream.protocol.api.jsonio import Int, Uint64
from lakestream.protocol.api.request import Request, Routes, Where
from lakestream.protocol.gotime import format_time
from lakestream.protocol.subjects import overlaps
from lakestream.stream import rules as stream_rules
from lakestream.stream.assembly import Stream
from lakestream.stream.core import account_limits, offline
from lakestream.stream.core.config import LAST_SEQ, StreamConfig, StreamConfigRequest
from lakestream.stream.core.confirming import when_all_applied
from lakestream.stream.core.info import info_shown, state_shown
from lakestream.stream.core.operations import DeleteMessage, Purge, UpdateStream
from lakestream.stream.core.reader import HistoryUnavailableError
from lakestream.stream.mirroring.origin_rules import Find, check_filters

if TYPE_CHECKING:
    from lakestream.account.engine import Engine

NAMES_LIMIT = 1024
"""Names in one reply of STREAM.NAMES."""
LIST_LIMIT = 256
"""Streams in one reply of STREAM.LIST."""

_PAGE = {"total": 0, "offset": 0, "limit": 0}


class StreamInfoRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of STREAM.INFO."""

    offset: Int = 0
    deleted_details: bool = False
    subjects_filter: str = ""


class StreamNamesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of STREAM.NAMES and STREAM.LIST."""

    offset: Int = 0
    subject: str = ""


class StreamPurgeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of STREAM.PURGE."""

    seq: Uint64 = 0
    filter: str = ""
    keep: Uint64 = 0


class MsgDeleteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of STREAM.MSG.DELETE."""

    seq: Uint64 = 0
    no_erase: bool = False


class _Stated(msgspec.Struct):
    """Whether a configuration names its storage."""

    storage: str = ""


class StreamApi:
    """Serves everything under `$JS.API.STREAM.`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._events = engine.events
        self._updating: dict[str, StreamConfig] = {}
        self._snapshots = Snapshots(engine)
        self._restores = Restores(engine, self._restore_target)

    def register(self, routes: Routes) -> None:
        """See `ApiPart.register`."""
        route, meta, stream = routes.route, Where.META, Where.STREAM
        route("STREAM.CREATE.*", "stream_create_response", self._create, where=meta)
        route("STREAM.UPDATE.*", "stream_update_response", self._update, where=stream)
        route("STREAM.INFO.*", "stream_info_response", self._info, empty=_PAGE, where=Where.REPLICA)
        route("STREAM.NAMES", "stream_names_response", self._names, empty={**_PAGE, "streams": None}, where=meta)
        route("STREAM.LIST", "stream_list_response", self._list, empty={**_PAGE, "streams": []}, where=meta)
        route("STREAM.DELETE.*", "stream_delete_response", self._delete, where=meta)
        route("STREAM.PURGE.*", "stream_purge_response", self._purge, empty={"purged": 0}, where=stream)
        route("STREAM.MSG.GET.*", "stream_msg_get_response", self._get_message, where=stream)
        route("STREAM.MSG.DELETE.*", "stream_msg_delete_response", self._delete_message, where=stream)
        route("STREAM.SNAPSHOT.*", "stream_snapshot_response", self._snapshot, where=stream)
        route("STREAM.RESTORE.*", "stream_restore_response", self._restore, empty={"deliver_subject": ""})
        if self._engine.cluster is None:
            for verb, kind in (
                ("LEADER.STEPDOWN", "leader_stepdown"),
                ("PEER.REMOVE", "remove_peer"),
                ("PEER.EVACUATE", "evacuate_peer"),
                ("CANCEL_MOVE", "cancel_move"),
            ):
                route(f"STREAM.{verb}.*", f"stream_{kind}_response", _clustered_only, level=False)

    def find(self, name: str, *, led: bool = True) -> Stream:
        """The stream of that name. Raises ApiError 10059, 10194 when its log can not be read, 10008 when it is not
        led here and `led` asks for that."""
        stream = self._engine.streams.get(name)
        if stream is None:
            raise self._engine.absent(name)
        if led and not stream.leading:
            raise api_error(10008)
        return stream

    # ------------------------------------------------------------------ create, update, delete
    def _create(self, request: Request) -> None:
        wanted = request.parse(StreamConfigRequest)
        name = request.tokens[0]
        if wanted.name != name:
            raise api_error(10056)
        stream_rules.check_create(wanted)
        self._in_turn(name, request, lambda over: self._create_next(request, wanted, over))

    def _create_next(self, request: Request, wanted: StreamConfigRequest, over: Callable[[], None]) -> None:
        engine = self._engine
        self._check_account(wanted.config(), stated=stated(request))
        config = self._checked(wanted)
        existing = engine.streams.get(config.name)
        if existing is not None:
            if existing.config != config:
                raise api_error(10058)
            request.respond({**self._info_of(existing), "did_create": True})
            over()
            return
        if config.name in engine.offline:
            self.find(config.name)
        self._check_room(config, new=True)

        def created(outcome: Stream | ApiError) -> None:
            if isinstance(outcome, ApiError):
                request.fail(outcome)
            else:
                self._events.stream_action(config.name, "CREATED", "create")
                request.respond({**self._info_of(outcome), "did_create": True})
            over()

        engine.create_stream(config, created)

    def _check_account(self, config: StreamConfig, *, stated: bool = True) -> None:
        """What the account's limits say of a new stream, before the configuration is looked at.

        `stated`: it names its storage; else that is not known yet, and whether there is room is asked later (as by
        nats-server).
        """
        engine, name = self._engine, config.name
        if engine.limits.max_streams > 0 and not self._taken(name):
            account_limits.check_streams(engine.limits, self._count())
        account_limits.check_consumers(engine.limits, config.max_consumers)
        if stated:
            self._check_reserved(config)

    def _check_reserved(self, config: StreamConfig) -> None:
        """Whether the account may reserve what the stream reserves, with every replica."""
        engine = self._engine
        if engine.limits.storage(config.storage) < 0:
            return
        replicas = max(1, config.num_replicas) if engine.cluster is not None else 1
        reserved = sum(
            max(0, other.max_bytes) * (other.num_replicas if engine.cluster is not None else 1)
            for other in self._others(config)
            if other.storage == config.storage
        )
        account_limits.check_reserved(engine.limits, config, reserved, replicas)

    def _count(self) -> int:
        """How many streams the account has, those on their way included."""
        return len(self._engine.configs())

    def _others(self, config: StreamConfig) -> list[StreamConfig]:
        """The account's other streams, also those on their way."""
        changing = {**{other.name: other for other in self._engine.configs()}, **self._updating}
        return [other for other in changing.values() if other.name != config.name]

    def _update(self, request: Request) -> None:
        wanted = request.parse(StreamConfigRequest)
        name = request.tokens[0]
        if wanted.name != name:
            self._checked(wanted)
            raise api_error(10056)
        self._in_turn(name, request, lambda over: self._update_next(request, wanted, over))

    def _update_next(self, request: Request, wanted: StreamConfigRequest, over: Callable[[], None]) -> None:
        checked = self._checked(wanted)
        stream = self.find(checked.name)
        stream.mirroring.check_update(checked)
        limited = {name: consumer.config for name, consumer in stream.consumers.items()}
        config = stream_rules.updated(stream.config, checked, limited)
        if config.max_consumers != stream.config.max_consumers:
            account_limits.check_consumers(self._engine.limits, config.max_consumers)
        self._check_room(config, reserves=config.max_bytes > max(0, stream.config.max_bytes))
        self._updating[stream.name] = config

        def applied(outcome: object) -> None:
            del self._updating[stream.name]
            if isinstance(outcome, ApiError):
                request.fail(outcome)
            else:
                self._events.stream_action(stream.name, "UPDATED", "modify")
                request.respond(self._info_of(stream, domain=self._engine.domain))
            over()

        stream.propose(UpdateStream(msgspec.json.encode(config)), applied)

    def _checked(self, wanted: StreamConfigRequest) -> StreamConfig:
        window = self._engine.options.duplicate_window_ns
        clustered = self._engine.cluster is not None
        config = stream_rules.checked(
            wanted.config(),
            pedantic=wanted.pedantic,
            window_limit_ns=window,
            clustered=clustered,
            limits=self._engine.limits,
            find=self._find_origin(wanted.name),
        )
        refusal = self._engine.lake.refusal(config)
        if refusal is not None:
            raise invalid(refusal)
        if offline.refusal(msgspec.json.encode(config)):  # no member could apply it
            raise api_error(10049, err="error creating store for stream")
        return config

    def _find_origin(self, name: str) -> Find:
        """What streams the stream of that name may copy from."""

        def find(origin: str) -> StreamConfig | None:
            # Only asked where there is a mirror or a source.
            others = self._others(StreamConfig(name=name))
            return next((other for other in others if other.name == origin), None)

        return find

    def _check_room(self, config: StreamConfig, *, new: bool = False, reserves: bool = True) -> None:
        """Storage and subjects that are still free beside all other streams, also those on their way.

        `new`: it is to be created. `reserves`: it takes more storage than before.
        """
        engine = self._engine
        others = self._others(config)
        if reserves:
            self._check_reserved(config)
            everybodys = [*others, *engine.foreign_configs()]
            stream_rules.check_reserved(config, everybodys, engine.options.max_memory, engine.options.max_file)
        if new:
            check_filters(config)
        stream_rules.check_taken(config, others)

    def _delete(self, request: Request) -> None:
        if not request.empty_body:
            raise api_error(10038)
        name = request.tokens[0]
        self._in_turn(name, request, lambda over: self._delete_next(request, name, over))

    def _delete_next(self, request: Request, name: str, over: Callable[[], None]) -> None:
        def deleted(outcome: ApiError | None) -> None:
            request.succeed(outcome)
            over()

        if name in self._engine.offline:
            self._engine.delete_offline(name, deleted)
        else:
            self.find(name)
            self._engine.delete_stream(name, deleted)
        self._events.stream_action(name, "DELETED", "delete")

    def _in_turn(self, name: str, request: Request, work: Callable[[Callable[[], None]], None]) -> None:
        """Run `work(over)` when no other change of this stream is under way; see `Turns.take`."""
        self._engine.turns.take(f"S {self._engine.account} {name}", request, work)

    # ------------------------------------------------------------------ info
    def _info_of(self, stream: Stream, **more: Any) -> dict[str, Any]:
        return info_of(self._engine, stream, **more)

    def _info(self, request: Request) -> None:
        if self._engine.cluster is not None:
            self.find(request.tokens[0], led=False)  # there it is the first question
        asked = request.parse_if_json(StreamInfoRequest, "JSApiStreamInfoRequest")
        stream = self.find(request.tokens[0], led=False)
        stream.confirming.after_applied(lambda: request.run(lambda: self._info_applied(request, asked)))

    def _info_applied(self, request: Request, asked: StreamInfoRequest) -> None:
        stream = self.find(request.tokens[0], led=False)
        index, pattern, offset = stream.store.subjects, asked.subjects_filter.encode(), max(0, asked.offset)
        if not pattern:
            self._answer_info(request, stream, asked, (0, {}))
        elif len(index) <= subject_pages.AT_ONCE:
            self._answer_info(request, stream, asked, subject_pages.page_at_once(index, pattern, offset))
        else:

            async def later() -> None:
                page = await subject_pages.page_in_steps(index, pattern, offset)
                self._answer_info(request, stream, asked, page)

            self._engine.clock.spawn(request.finish(later()))

    def _answer_info(self, request: Request, stream: Stream, asked: StreamInfoRequest, found: Page) -> None:
        total, subjects = found
        page = {"total": total, "offset": max(0, asked.offset), "limit": SUBJECTS_LIMIT} if total else _PAGE
        state = state_shown(stream, deleted=asked.deleted_details, subjects=subjects)
        engine, more = self._engine, self._alternates(stream)
        leader = {"leader": engine.server_name}
        info = self._info_of(stream, state=state, domain=engine.domain, cluster=leader, alternates=more)
        request.respond({**page, **info})

    def _alternates(self, stream: Stream) -> list[dict[str, str]]:
        """Where else it may be read."""
        return []

    def _listed(self, request: Request, name: str, limit: int) -> tuple[dict[str, int], list[str]]:
        """The page that NAMES or LIST asks for: names in order, of offline streams too."""
        asked, engine = request.parse_if_json(StreamNamesRequest, name), self._engine
        names = sorted({*engine.streams, *engine.offline})
        if asked.subject:
            pattern = asked.subject.encode()
            names = [
                name
                for name in names
                if (config := engine.config_of(name)) is not None
                and any(overlaps(subject.encode(), pattern) for subject in config.subjects)
            ]
        offset = min(max(0, asked.offset), len(names))
        return {"total": len(names), "offset": offset, "limit": limit}, names[offset : offset + limit]

    def _names(self, request: Request) -> None:
        page, names = self._listed(request, "JSApiStreamNamesRequest", NAMES_LIMIT)
        request.respond({**page, "streams": names or None})

    def _list(self, request: Request) -> None:
        page, names = self._listed(request, "JSApiStreamListRequest", LIST_LIMIT)
        streams = self._engine.streams
        listed = [streams[name] for name in names if name in streams]
        when_all_applied(listed, lambda: request.run(lambda: self._list_applied(request, page, names)))

    def _list_applied(self, request: Request, page: dict[str, int], names: list[str]) -> None:
        streams, offline = self._engine.streams, self._engine.offline
        shown = [
            self._info_of(streams[name], versions=False, domain=self._engine.domain)
            for name in names
            if name in streams
        ]
        fields: dict[str, Any] = {**page, "streams": shown}
        if missing := [name for name in names if name in offline]:
            fields |= {"missing": missing, "offline": {name: offline[name] for name in missing}}
        request.respond(fields)

    # ------------------------------------------------------------------ messages
    def _purge(self, request: Request) -> None:
        asked = request.parse_if_json(StreamPurgeRequest, "JSApiStreamPurgeRequest")
        if asked.seq and asked.keep:
            raise api_error(10003)
        stream = self.find(request.tokens[0])
        if stream.config.sealed:
            raise api_error(10109)
        if stream.config.deny_purge:
            raise api_error(10110, err="stream purge not permitted")

        def purged(outcome: object) -> None:
            if isinstance(outcome, ApiError):
                request.fail(outcome)
            else:
                request.respond({"success": True, "purged": outcome})

        stream.pipeline.settle()  # what was acked before is not purged
        # No table could hold what the stream would go on with (nats-server does, until numbers begin again at 0).
        seq = asked.seq if asked.seq <= max(LAST_SEQ, stream.next_seq) else 0
        stream.propose(Purge(asked.filter.encode(), seq, asked.keep), purged)

    def _delete_message(self, request: Request) -> None:
        if request.empty_body:
            raise api_error(10003)
        asked = request.parse(MsgDeleteRequest, "JSApiMsgDeleteRequest")
        stream = self.find(request.tokens[0])
        if stream.config.sealed:
            raise api_error(10109)
        if stream.config.deny_delete:
            raise api_error(10057, err="message delete not permitted")
        missing = _not_deletable(stream, asked.seq)
        if missing is not None:
            raise missing

        def deleted(outcome: object) -> None:
            request.succeed(outcome if outcome else api_error(10043, seq=asked.seq))

        stream.propose(DeleteMessage(asked.seq, not asked.no_erase), deleted)

    def _get_message(self, request: Request) -> None:
        if request.empty_body:
            raise api_error(10003)
        asked = request.parse(MsgGetRequest, "JSApiMsgGetRequest")
        if asked.names_nothing or asked.clashes or asked.batch or asked.max_bytes or asked.multi_last:
            raise api_error(10003)
        stream = self.find(request.tokens[0])

        def confirmed(led: bool) -> None:
            if led:
                self._get_stored(request, stream, asked)
            elif self._engine.cluster is not None and not stream.closed:  # whoever leads now may know
                again = functools.partial(request.run, functools.partial(self._get_message, request))
                self._engine.cluster.requests.dispatch(request, Where.STREAM, again)
            else:
                raise api_error(10008)

        confirming = stream.confirming

        def confirm() -> None:
            confirming.leading(lambda led: request.run(lambda: confirmed(led)))

        if asked.seq and asked.seq in stream.store.live and not stream.operations:
            confirm()  # nothing that was sent before can change the answer
        else:
            confirming.after_applied(lambda: request.run(confirm))

    def _get_stored(self, request: Request, stream: Stream, asked: MsgGetRequest) -> None:
        origin = self._engine.streams.get(stream.mirroring.reads_from)  # none of that name, mostly
        if origin is not None and origin.leading:
            stream = origin
        start = asked.seq
        if asked.start_time is not None:
            at = stream.store.first_at(query.instant(asked.start_time))
            if at is None:
                stream.clock.spawn(self._get_later(request, stream, asked))
                return
            if not at:
                raise api_error(10037)
            start = at
        seq = _named(stream, asked, start)
        if stream.local(seq):
            _answer_message(request, _read(stream, seq), asked.no_hdr)
        elif seq in stream.store.live:
            stream.clock.spawn(self._get_later(request, stream, asked, seq))
        else:
            raise api_error(10037)

    async def _get_later(self, request: Request, stream: Stream, asked: MsgGetRequest, seq: int = 0) -> None:
        """Answer with a message that is (or whose time is) known to the lake only."""
        try:
            if not seq and asked.start_time is not None:
                start = await stream.first_at(query.instant(asked.start_time))
                seq = _named(stream, asked, start) if start else 0
            _answer_message(request, await stream.fetch(seq) if seq else None, asked.no_hdr)
        except ApiError as error:
            request.fail(error)
        except (HistoryUnavailableError, LogError) as error:
            request.fail(api_error(10051, err=for_clients(error)))
        except Exception:
            request.fail(api_error(10051, err="the message could not be read from the lake"))
            raise

    # ------------------------------------------------------------------ backups
    def _snapshot(self, request: Request) -> None:
        if request.empty_body:
            raise api_error(10003)
        stream = self.find(request.tokens[0])
        self._snapshots.begin(request, request.parse(SnapshotRequest, "JSApiStreamSnapshotRequest"), stream)

    def _restore(self, request: Request) -> None:
        if request.empty_body:
            raise api_error(10003)
        asked, name = request.parse(RestoreRequest, "JSApiStreamRestoreRequest"), request.tokens[0]
        if asked.config.name not in ("", name):
            raise api_error(10056)
        wanted = msgspec.structs.replace(asked.config, name=name)
        self._check_account(wanted, stated=False)
        window = self._engine.options.duplicate_window_ns
        # Whether there is room for it beside the others is seen at the end, as by nats-server.
        config = stream_rules.checked(
            wanted,
            window_limit_ns=window,
            clustered=True,
            limits=self._engine.limits,
            find=self._find_origin(name),
        )
        refusal = self._engine.lake.refusal(config)
        if refusal is not None:
            raise invalid(refusal)
        if self._taken(name):
            raise api_error(10130)
        kept = {key: value for key, value in wanted.metadata.items() if key not in stream_rules.DYNAMIC_METADATA}
        self._restores.begin(request, msgspec.structs.replace(config, metadata=kept), asked.state)

    def _taken(self, name: str) -> bool:
        return name in self._engine.streams or name in self._engine.offline

    def _restore_target(self, config: StreamConfig) -> Target:
        return LocalTarget(self._engine, config, self._check_room, self._restored)

    def _restored(self, stream: Stream) -> dict[str, Any]:
        """A stream is whole: tell it, and how it is."""
        self._events.stream_action(stream.name, "CREATED", "create")
        return self._info_of(stream)


def stated(request: Request) -> bool:
    """Whether the configuration in a body names its storage."""
    return request.parse(_Stated, strict=False).storage != ""


def info_of(engine: Engine, stream: Stream, **more: Any) -> dict[str, Any]:
    """StreamInfo, in a cluster always with the domain and the `cluster` object."""
    cluster = engine.cluster
    if cluster is not None:
        more = {**more, "cluster": cluster.shown(stream), "domain": engine.domain}
    return info_shown(stream, engine.clock.now(), **more)


def _clustered_only(request: Request) -> None:
    raise api_error(10010)


def _not_deletable(stream: Stream, seq: int) -> ApiError | None:
    """Why there is nothing to delete at `seq`; the words depend on the storage, as in nats-server."""
    store = stream.store
    if seq in store.live or store.last_seq < seq < stream.next_seq:  # the latter is in flight, and stored before
        return None
    if stream.config.storage == "file":
        if seq > store.last_seq:
            return api_error(10057, err="stream store EOF")
        if seq < store.first_seq or not seq:
            return api_error(10057, err="no message found")
    return api_error(10043, seq=seq)


def _named(stream: Stream, asked: MsgGetRequest, start: int) -> int:
    """The sequence that the request names; `start` is its sequence, or what its start time came to."""
    if asked.last_by_subj:
        return query.last_of(stream.store, asked.last_by_subj.encode())
    if asked.next_by_subj:
        return query.next_of(stream.store, asked.next_by_subj.encode(), start)
    return start


def _read(stream: Stream, seq: int) -> Record | None:
    try:
        return stream.get(seq)
    except LogError as error:
        raise api_error(10051, err=for_clients(error)) from error


def _answer_message(request: Request, record: Record | None, without_header: bool) -> None:
    if record is None:
        raise api_error(10037)
    message: dict[str, Any] = {"subject": record.subject.decode("utf-8", "replace"), "seq": record.seq}
    if record.header and not without_header:
        message["hdrs"] = b64encode(record.header).decode()
    if record.data:
        message["data"] = b64encode(record.data).decode()
    message["time"] = format_time(record.time_ns)
    request.respond({"message": message})
