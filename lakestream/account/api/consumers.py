"""`$JS.API.CONSUMER.>`: requests about consumers.

Belongs here: reading the requests of docs/internals/api.md#consumers, the rules about names and subjects, and turning
them into operations of a stream's log, one at a time for each stream, so that every request sees the effect of the one
before. `stream/consumer/rules.py` has the rules of configurations, `stream/consumer/info.py` the fields of replies.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from lakestream.account.api.find import find
from lakestream.account.engine import Engine
from lakestream.log.format.errors import LogError
from lakestream.meta.changes import Finished, Work
from lakestream.meta.info import consumer_shown
from lakestream.protocol.api.errors import ApiError, api_error, for_clients
from lakestream.protocol.api.jsonio import Int, Time, Uint64
from lakestream.protocol.api.request import Request, level_refused
from lakestream.protocol.gotime import END_NS, START_NS, ZERO, time_ns
from lakestream.stream.assembly import Stream
from lakestream.stream.consumer import rules
from lakestream.stream.consumer.config import ConsumerConfig, CreateConsumerRequest, stored_config
from lakestream.stream.consumer.consumer import Consumer
from lakestream.stream.consumer.info import consumer_info
from lakestream.stream.consumer.start import ConsumerStart, last_of_each, start_by_time, start_of
from lakestream.stream.core import identity as stream_identity
from lakestream.stream.core import offline
from lakestream.stream.core.account_limits import lowest
from lakestream.stream.core.operations import CreateConsumer, DeleteConsumer, Operation, ResetConsumer, UpdateConsumer

NAMES_LIMIT = 1024
LIST_LIMIT = 256
MAX_INT64 = (1 << 63) - 1
OUT_OF_RANGE = "json: error calling MarshalJSON for type *time.Time: year outside of range [0,9999]"
"""nats-server's error for a pause that ends outside these years."""
_ALPHABET = string.ascii_letters + string.digits
_PAGE = {"total": 0, "offset": 0, "limit": 0, "consumers": []}


class PageRequest(msgspec.Struct, frozen=True):
    """The body of NAMES and LIST."""

    offset: Int = 0


class PauseRequest(msgspec.Struct, frozen=True):
    """The body of PAUSE; no time means resume."""

    pause_until: Time = None


class ResetRequest(msgspec.Struct, frozen=True):
    """The body of RESET; 0 means after the ack floor."""

    seq: Uint64 = 0


class UnpinRequest(msgspec.Struct, frozen=True):
    """The body of UNPIN."""

    group: str = ""


def listed(stream: Stream) -> list[str]:
    """Return the names of a stream's consumers without those of mirrors and sources, which are never counted."""
    return [name for name, consumer in stream.consumers.items() if not consumer.config.direct]


def _encoded(config: ConsumerConfig) -> bytes:
    """Return a configuration as the log holds it. Raise ApiError 10012 if it could not be decoded again: an entry that
    no member can apply would stop the stream."""
    encoded = msgspec.json.encode(config)
    try:
        stored_config(config.name, encoded)
    except offline.Unsupported:
        raise api_error(10012, err="error creating store for consumer") from None
    return encoded


class ConsumerApi:
    """The consumer part of the API."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def _caps(self) -> rules.ConsumerCaps:
        """Return the limits of server and account; the latter may change."""
        options, limits = self._engine.options, self._engine.limits
        return rules.ConsumerCaps(
            max_ack_pending=lowest(options.max_ack_pending, limits.max_ack_pending),
            max_request_batch=options.max_request_batch,
        )

    def _info_of(self, consumer: Consumer, listed: bool = False) -> dict[str, Any]:
        """Return ConsumerInfo. A consumer has the peers and the leader of its stream, whose log holds it."""
        shown = self._engine.node.shown.cluster(consumer.stream.uid)
        if shown:
            shown = consumer_shown(shown, rules.replicas_of(consumer.config, consumer.stream.config))
        return consumer_info(consumer, listed, shown)

    def _respond(self, request: Request, consumer: Consumer, **more: object) -> None:
        """Respond with ConsumerInfo, once the messages are counted that it tells of."""
        consumer.feed.when_counted(lambda: request.respond({**self._info_of(consumer), **more}))

    # ------------------------------------------------------------------ finding
    def _consumer(self, stream_name: str, name: str) -> Consumer:
        consumer = find(self._engine, stream_name).consumers.get(name)
        if consumer is None:
            raise api_error(10014)
        return consumer

    def _in_turn(self, request: Request, stream: Stream, change: Work) -> None:
        """Run a change of a stream's consumers after the earlier ones have finished.

        `change` receives a function that it calls exactly once when it has finished. If it raises ApiError, the request
        fails with that error.
        """

        def run(finished: Finished) -> Iterator[None] | None:
            if stream.closed:
                raise api_error(10059)
            return change(finished)

        self._engine.changes.take(f"C {stream.uid}", request, run)

    # ------------------------------------------------------------------ create and update
    def create_legacy(self, request: Request) -> None:
        asked = self._asked(request)
        if asked.config.durable_name:
            raise api_error(10020)
        self._create(request, asked, asked.config)

    def create_named(self, request: Request) -> None:
        asked = self._asked(request)
        name, config = request.tokens[1], asked.config
        if config.durable_name and config.durable_name != name:
            raise api_error(10017)
        if len(request.tokens) > 2:
            if config.filter_subjects:
                raise api_error(10137)
            if config.filter_subject != request.tokens[2]:
                raise api_error(10131)
        self._create(request, asked, replace(config, name=name))

    def create_durable(self, request: Request) -> None:
        asked = self._asked(request)
        name, config = request.tokens[1], asked.config
        if not config.durable_name:
            raise api_error(10018)
        if config.durable_name != name:
            raise api_error(10017)
        self._create(request, asked, replace(config, name=name))

    @staticmethod
    def _asked(request: Request) -> CreateConsumerRequest:
        asked = request.parse(CreateConsumerRequest)
        if not asked.config.priority_policy:  # in a stored configuration of an earlier release it means "none"
            raise api_error(10025, err='unknown priority policy: ""')
        if asked.stream_name != request.tokens[0]:
            raise api_error(10056)
        if len(request.tokens) > 1 and ("/" in request.tokens[1] or "\\" in request.tokens[1]):
            raise api_error(10127)
        return asked

    def _create(self, request: Request, asked: CreateConsumerRequest, config: ConsumerConfig) -> None:
        if config.num_replicas > 1 and not self._engine.node.placing.several:
            raise api_error(10074)
        stream = find(self._engine, asked.stream_name)
        if config.direct and config.sourcing:
            known = stream.consumers.get(config.name)
            config = rules.for_sourcing(config, stream.config.retention, None if known is None else known.config)
        self._in_turn(request, stream, lambda finished: self._create_next(request, asked, config, stream, finished))

    def _create_next(
        self,
        request: Request,
        asked: CreateConsumerRequest,
        config: ConsumerConfig,
        stream: Stream,
        finished: Finished,
    ) -> Iterator[None]:
        """Create or update a consumer, in steps until all is decided that takes long."""
        name = config.durable_name or config.name
        wrong = unique = None
        if not self._has_filters(stream, name, config):
            wrong = yield from rules.check_filters(config)
        if wrong is None and stream.config.retention == "workqueue" and (config.filters or not config.sourcing):
            others = [(other.name, other.config) for other in stream.consumers.values()]
            unique = yield from rules.check_unique(config, name, others)
        if stream.closed:
            raise api_error(10059)
        yield from self._decide(request, asked, config, stream, wrong, unique, finished)

    @staticmethod
    def _has_filters(stream: Stream, name: str, config: ConsumerConfig) -> bool:
        """Return True if a consumer of this name has these filters already: they were checked when it got them."""
        known = stream.consumers.get(name) if name else None
        return (
            known is not None
            and known.config.filter_subjects == config.filter_subjects
            and known.config.filter_subject == config.filter_subject
        )

    def _decide(
        self,
        request: Request,
        asked: CreateConsumerRequest,
        config: ConsumerConfig,
        stream: Stream,
        wrong: ApiError | None,
        unique: ApiError | None,
        finished: Finished,
    ) -> Iterator[None]:
        """Create or update a consumer, in steps until its start is found, or raise ApiError.

        Args:
            wrong: the error of its filters.
            unique: the error that another consumer of a work-queue stream wants the same messages.
        """
        name = config.durable_name or config.name
        existing = stream.consumers.get(name) if name else None
        if existing is not None:
            config = replace(config, pause_until=existing.config.pause_until)
        given = rules.with_static_metadata(config)
        ephemeral = existing.ephemeral if existing is not None else None
        config = rules.completed(given, stream.config, self._caps, asked.pedantic, ephemeral)
        rules.check(config, stream.config, self._caps, wrong)
        if config.direct or config.sourcing:
            self._identify(request, stream)
        if existing is not None:
            if asked.action == "create":
                # As in nats-server, compare with the request before the default of inactive_threshold is filled in.
                plain = rules.completed(given, stream.config, self._caps, asked.pedantic, ephemeral=False)
                if not rules.same(existing.config, plain):
                    raise api_error(10148)
            self._update(request, config, stream, existing, unique, finished)
            return
        if asked.action == "update":
            raise api_error(10149)
        self._check_room(stream, config, unique)
        if name:
            self._check_name(config, name, stream)
        else:
            name = self._new_name(stream)
        if config.deliver_policy != "by_start_time":
            if config.deliver_policy == "last_per_subject":
                try:
                    start = yield from last_of_each(config.filters, stream.store)
                except LogError as error:
                    raise api_error(10012, err=error.for_clients) from error
                if stream.closed:
                    raise api_error(10059)
            else:
                start = start_of(config, stream.store, stream.pipeline.next_seq)
            self._begin(request, stream, name, config, start, finished)
            return

        async def look_up() -> None:
            try:
                start = await start_by_time(config, stream.store, stream.reader)
            except Exception as error:
                request.fail(api_error(10012, err=for_clients(error)))
                finished()
                raise
            self._begin(request, stream, name, config, start, finished)

        self._engine.clock.spawn(look_up())

    def _check_room(self, stream: Stream, config: ConsumerConfig, unique: ApiError | None) -> None:
        tier = self._engine.limits.tier(stream.config.num_replicas)
        most = lowest(stream.config.max_consumers, tier.max_consumers if tier is not None else 0)
        if not most:
            most = self._engine.options.default_max_consumers
        if config.direct:
            return  # consumers of mirrors and sources are exempt from limits
        if 0 < most <= len(stream.consumers) and most <= len(listed(stream)):  # the names only near the limit
            raise api_error(10026)
        if stream.config.retention == "workqueue" and not config.sourcing:
            rules.check_work_queue(config, unique)

    @staticmethod
    def _identify(request: Request, stream: Stream) -> None:
        """Reject a request that means another stream of this name; set the header that identifies the stream."""
        wanted = stream_identity.asked(request.header)
        if wanted and wanted != stream_identity.identity(stream.uid):
            raise api_error(10225, msg=stream_identity.identity(stream.uid))
        request.answer_header = stream_identity.shown(stream.uid)

    @staticmethod
    def _check_name(config: ConsumerConfig, name: str, stream: Stream) -> None:
        stored = stream.config.storage == "file" and not config.mem_storage
        if stored and not config.durable_name and len(name.encode()) > rules.MAX_NAME_BYTES:
            raise api_error(10012, err="error creating store for consumer")
        rules.check_name(name, durable=bool(config.durable_name))

    @staticmethod
    def _new_name(stream: Stream) -> str:
        while True:
            name = "".join(random.choices(_ALPHABET, k=8))
            if name not in stream.consumers:
                return name

    def _begin(
        self,
        request: Request,
        stream: Stream,
        name: str,
        config: ConsumerConfig,
        start: ConsumerStart,
        finished: Callable[[], None],
    ) -> None:
        def created(consumer: Consumer) -> None:
            if consumer.volatile and start.picked:
                consumer.pick(start.picked)
            consumer.advisories.created()
            if consumer.config.pause_until_ns:
                consumer.pause.advise()
            self._respond(request, consumer)

        # A volatile consumer does not outlive this process, so its start need not be in the log.
        volatile = config.mem_storage and stream.config.num_replicas <= 1
        picked = None if volatile or not start.picked else start.picked
        operation = CreateConsumer(name, _encoded(config), self._engine.clock.now(), start.seq, picked)
        self._propose(request, stream, operation, created, finished, volatile=volatile)

    def _update(
        self,
        request: Request,
        config: ConsumerConfig,
        stream: Stream,
        existing: Consumer,
        unique: ApiError | None,
        finished: Callable[[], None],
    ) -> None:
        old = existing.config
        unchanged = rules.same(old, config)
        if unique is not None and config.filters:
            raise unique
        rules.check_update(old, config, existing.target.bound)
        if unchanged:
            self._respond(request, existing)
            finished()
            return
        reset = 0
        if config.sourcing and config.deliver_subject != old.deliver_subject:
            # Messages that a mirror or a source has not confirmed may never have been stored there: send them again.
            reset = existing.ledger.floor()[1] + 1
        operation = UpdateConsumer(existing.name, _encoded(config), reset)
        self._propose(
            request, stream, operation, lambda each: self._respond(request, each), finished, volatile=existing.volatile
        )

    @staticmethod
    def _propose(
        request: Request,
        stream: Stream,
        operation: Operation,
        answer: Callable[[Consumer], None],
        finished: Callable[[], None],
        *,
        volatile: bool = False,
    ) -> None:
        """Propose a change of a consumer, a `volatile` one or not; once it is applied call `answer` with the consumer,
        or respond with the error."""

        def done(result: object) -> None:
            if isinstance(result, Consumer):
                answer(result)
            else:  # no error: the consumer was deleted meanwhile
                request.fail(result if isinstance(result, ApiError) else api_error(10014))
            finished()

        stream.propose(operation, done, volatile=volatile)

    # ------------------------------------------------------------------ names, list, info
    def _page(self, request: Request, limit: int) -> tuple[list[Consumer], dict[str, Any]]:
        asked = request.parse_if_json(PageRequest, "JSApiConsumersRequest")
        stream = find(self._engine, request.tokens[0])
        names = sorted(listed(stream))
        total = len(names)
        offset = min(max(asked.offset, 0), total)
        names = names[offset : offset + limit]
        fields: dict[str, Any] = {"total": total, "offset": offset, "limit": limit}
        return [stream.consumers[name] for name in names], fields

    def names(self, request: Request) -> None:
        consumers, fields = self._page(request, NAMES_LIMIT)
        request.respond({**fields, "consumers": [consumer.name for consumer in consumers]})

    def list_consumers(self, request: Request) -> None:
        self._page(request, LIST_LIMIT)  # reject an invalid request at once

        def answer() -> None:
            consumers, fields = self._page(request, LIST_LIMIT)
            left = len(consumers) + 1

            def counted() -> None:
                nonlocal left
                left -= 1
                if not left:
                    request.respond({**fields, "consumers": [self._info_of(one, listed=True) for one in consumers]})

            for consumer in consumers:
                consumer.feed.when_counted(counted)
            counted()

        self._engine.when_applied([find(self._engine, request.tokens[0])], lambda: request.run(answer))

    def info(self, request: Request) -> None:
        if not request.empty_body:
            raise api_error(10038)
        consumer = self._consumer(*request.tokens[:2])

        def answer() -> None:
            self._respond(request, self._consumer(*request.tokens[:2]))

        self._engine.when_applied([find(self._engine, consumer.stream.name)], lambda: request.run(answer))

    # ------------------------------------------------------------------ delete, pause, reset
    def delete(self, request: Request) -> None:
        if not request.empty_body:
            raise api_error(10038)
        stream, name = find(self._engine, request.tokens[0]), request.tokens[1]

        def change(finished: Callable[[], None]) -> None:
            consumer = self._consumer(stream.name, name)

            def done(result: object) -> None:
                request.succeed(result if result is not None else api_error(10014))
                finished()

            stream.propose(DeleteConsumer(name), done, volatile=consumer.volatile)

        self._in_turn(request, stream, change)

    def pause(self, request: Request) -> None:
        asked = request.parse_if_json(PauseRequest, "JSApiConsumerPauseRequest")
        stream, name = find(self._engine, request.tokens[0]), request.tokens[1]
        if asked.pause_until and not START_NS <= time_ns(asked.pause_until) < END_NS:
            raise api_error(10104, err=OUT_OF_RANGE)

        def change(finished: Callable[[], None]) -> None:
            consumer = self._consumer(stream.name, name)
            until = None if asked.pause_until in (None, ZERO) else rules.in_utc(asked.pause_until)
            config = rules.with_static_metadata(replace(consumer.config, pause_until=until))
            operation = UpdateConsumer(name, _encoded(config))
            self._propose(request, stream, operation, lambda _: self._answer_pause(request, until), finished)

        self._in_turn(request, stream, change)

    def _answer_pause(self, request: Request, until: str | None) -> None:
        remaining = min(time_ns(until) - self._engine.clock.now(), MAX_INT64) if until else 0
        answer: dict[str, Any] = {"paused": remaining > 0, "pause_until": until or ZERO}
        if remaining > 0:
            answer["pause_remaining"] = remaining
        request.respond(answer)

    def reset(self, request: Request) -> None:
        try:
            consumer = self._consumer(*request.tokens[:2])
        except ApiError:
            return  # no response, as in nats-server (docs/internals/api.md#requests), at any required API level
        if level_refused(request.header):
            raise api_error(10185)
        if request.body and not request.body.strip():
            raise api_error(10025, err="unexpected end of JSON input")
        asked = request.parse(ResetRequest, "JSApiConsumerResetRequest", strict=False)
        if stream_identity.asked(request.header) is not None:
            request.answer_header = stream_identity.shown(consumer.stream.uid)

        def change(finished: Callable[[], None]) -> None:
            seq = asked.seq or consumer.ledger.floor()[1] + 1
            if asked.seq:
                self._check_reset(consumer, seq)

            def answer(changed: Consumer) -> None:
                self._respond(request, changed, reset_seq=seq)

            self._propose(request, stream, ResetConsumer(consumer.name, seq), answer, finished)

        stream = find(self._engine, consumer.stream.name)
        self._in_turn(request, stream, change)

    @staticmethod
    def _check_reset(consumer: Consumer, seq: int) -> None:
        config = consumer.config
        if config.deliver_policy == "by_start_sequence":
            if seq < config.opt_start_seq:
                raise api_error(10204, err="below start seq")
        elif config.deliver_policy == "by_start_time":
            stored = consumer.stream.store.time_of(seq)
            if stored is not None and config.opt_start_time and stored < time_ns(config.opt_start_time):
                raise api_error(10204, err="below start time")
        elif config.deliver_policy != "all":
            raise api_error(10204, err="not allowed")

    # ------------------------------------------------------------------ unpin
    def unpin(self, request: Request) -> None:
        if self._engine.node.clustered:
            self._consumer(*request.tokens[:2])  # a clustered nats-server looks for the consumer first
        if not request.body.strip():
            raise api_error(10025, err="unexpected end of JSON input")
        asked = request.parse(UnpinRequest, "JSApiConsumerUnpinRequest", strict=False)
        if not asked.group:
            raise api_error(10025, err="consumer group not specified")
        if not rules.valid_group(asked.group):
            raise api_error(10162)
        consumer = self._consumer(*request.tokens[:2])
        if asked.group not in consumer.config.priority_groups:
            raise api_error(10160)
        consumer.unpin()
        request.respond({})
