"""The streams of one account.

Belongs here: the account's streams on this node, and the subscriptions of those that it leads. `meta/` creates, opens
and removes their files; `stream/` has their behaviour, `account/api/` the JSON API.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lakestream.log.format.errors import LogFrozen
from lakestream.meta import deleted_streams
from lakestream.meta.meta import failure
from lakestream.meta.node import MetaNode
from lakestream.meta.shared import Shared
from lakestream.ports import Bus, ClientInfo, Handler, ListedMessages, Messages, Single, Subscribed, Take
from lakestream.protocol.accounts import UNLIMITED, JetStreamLimits
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import SERVERS_QUEUE, prefixes
from lakestream.protocol.publishes import Publishes
from lakestream.stream.acks import Acks
from lakestream.stream.core.confirming import when_all_applied
from lakestream.stream.core.events import StreamEvents
from lakestream.stream.core.storage_use import AccountUse

if TYPE_CHECKING:
    from lakestream.account.get.direct import DirectGet
    from lakestream.stream.assembly import Stream
    from lakestream.stream.dormant import Dormant


FROZEN_AGAIN_NS = 60_000_000_000
"""Interval at which a frozen stream is logged again (1 minute)."""


class Engine:
    """Implements `AccountStreams` for one account of this server. `node` is set before anything is served.

    Args:
        bus: the account's part of core NATS.
        limits: the account's JetStream limits.
    """

    node: MetaNode

    def __init__(self, account: str, shared: Shared, bus: Bus, limits: JetStreamLimits = UNLIMITED) -> None:
        self.account, self.shared, self.bus, self.limits = account, shared, bus, limits
        self.clock, self.io = shared.clock, shared.io
        self.options, self.log, self.changes = shared.options, shared.log, shared.changes
        self.server_name, self.server_id = self.options.server_name, self.options.server_id
        self.domain = self.options.domain
        self.use = AccountUse(shared.use, shared.clock.now, shared.log.warn)
        self.use.limit(limits)
        self.events = StreamEvents(bus, shared.clock, shared.options.domain)
        self.serving = False
        """True while the account has JetStream; otherwise its streams receive nothing from its clients."""
        self.streams: dict[str, Stream] = {}
        self.dormant: dict[str, Dormant] = {}
        """Streams that are not open, by name."""
        self.offline: dict[str, str] = {}
        """Reasons of streams that cannot be served, by name: a damaged log, or a newer server is required."""
        self._subscriptions: dict[str, list[Subscribed]] = {}
        self.acks = Acks(bus, self.streams)

    @functools.cached_property
    def direct(self) -> DirectGet:
        """Return the direct gets, which are loaded with the first stream."""
        from lakestream.account.get.direct import DirectGet

        options = self.shared.options
        return DirectGet(self.bus, options.domain, options.max_pending, self.streams.get, self.shared.share)

    def delete_stream(self, name: str, done: Callable[[ApiError | None], None]) -> None:
        """Delete a stream; call `done(None)` once no restart can bring it back.

        If its table is kept, the uncompacted messages are sealed by then, and compacted after the answer.
        """
        assignment, stream = self.node.find(self.account, name), self.streams.get(name)
        if assignment is None:
            done(api_error(10059))
            return
        frozen = stream is not None and stream.failed is not None and not stream.replicated
        if frozen and stream is not None and self.shared.lake.keeps(deleted_streams.creation(stream)):
            why = "its table is to be kept, and what is not in it yet cannot be sealed before a restart"
            done(api_error(10050, err=f"{why}: {stream.failed}"))
            return
        self.node.remove(assignment, lambda outcome: done(failure(outcome, 10059)))

    def shown(self) -> list[Stream | Dormant]:
        """Return the streams on this node, open or not."""
        return [*self.streams.values(), *self.dormant.values()]

    # ------------------------------------------------------------------ streams that are not open
    def rest(self, dormant: Dormant, take: Take | None = None) -> None:
        name = dormant.name
        self.dormant[name] = dormant
        self.use.note(dormant)
        if not self.serving:
            return
        again = functools.partial(self._hold, name, False)
        published, asked = take or functools.partial(self._hold, name, True), take or again
        found = [self.bus.subscribe(each.encode(), published, runs=True) for each in dormant.config.subjects]
        for prefix in prefixes(self.domain):
            if dormant.config.allow_direct:
                base = b"%bDIRECT.GET.%b" % (prefix, name.encode())
                found += [self.bus.subscribe(on, again, SERVERS_QUEUE) for on in (base, base + b".>")]
            if dormant.consumer_count:
                found.append(self.bus.subscribe(b"%bCONSUMER.MSG.NEXT.%b.*" % (prefix, name.encode()), asked))
        if dormant.consumer_count:  # `Acks` declines them only where nobody else listens
            acks = (b"$JS.ACK.%b.>" % name.encode(), b"$JS.ACK.*.*.%b.>" % name.encode())
            found += [self.bus.subscribe(on, asked) for on in acks]
        self._subscriptions[name] = found

    def opening(self, name: str, then: Callable[[], None], size: int = 0) -> bool:
        """Open a dormant stream, and call `then`, which holds so many bytes, after everybody who asked before. Return
        False if it is open or unknown, or too much waits."""
        return name in self.dormant and self.node.keeping.open(self.account, name, then, size)

    def when_open(self, handler: Handler) -> Handler:
        """Return a handler of requests on subjects that end with a stream's name, which opens the stream first."""

        def asked(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
            def handle() -> None:
                handler(subject, reply, header, body, client)

            if not self.opening(subject.rpartition(b".")[2].decode("utf-8", "replace"), handle, len(body)):
                handle()

        return asked

    def _hold(self, name: str, own: bool, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
        """Open a stream for messages of a client. If they are its `own` they are given to it then, else sent again."""
        if type(messages) is not Publishes:  # its sender may use it again
            messages, begin, end = ListedMessages(list(messages.messages(begin, end))), 0, end - begin

        def opened() -> None:
            at, stream = begin, self.streams.get(name)
            while own and stream is not None and at < end:
                at = stream.proposer.take(messages, at, end, client)
            decline(one for one in messages.messages(at, end) if own or not self.bus.send(one))

        def decline(some: Iterable[Single]) -> None:
            for one in some:
                if one.reply:
                    self.bus.declined(one.subject, one.reply)

        if not self.opening(name, opened, sum(one.content_bytes for one in messages.messages(begin, end))):
            self._overrun(name, "size")
            decline(messages.messages(begin, end))
        return end

    # ------------------------------------------------------------------ AccountStreams
    def attach(self, stream: Stream) -> None:
        self.streams[stream.name] = stream
        self.dormant.pop(stream.name, None)
        stream.store.share()
        self.offline.pop(stream.name, None)
        stream.on_updated, stream.on_failed = self.refresh, self._failed
        stream.proposer.on_overrun = functools.partial(self._overrun, stream.name)
        stream.use = self.use
        self.use.note(stream)
        self.refresh(stream)
        self.shared.lake.attached(stream)

    def detach(self, name: str, trouble: str = "") -> None:
        self._unsubscribe(name)
        stream = self.streams.pop(name, None) or self.dormant.pop(name, None)
        if stream is not None:
            self.use.forget(stream)
        if trouble:
            self.offline[name] = trouble

    def refresh(self, stream: Stream) -> None:
        self._unsubscribe(stream.name)
        self._subscribe(stream)

    def lead(self, stream: Stream) -> None:
        if not self.node.alone:
            self.acks.attach(stream.name)

    def follow(self, name: str) -> None:
        self.acks.detach(name)

    def _overrun(self, name: str, limit: str) -> None:
        what = f"Dropping messages due to excessive stream ingest rate on '{self.account}' > '{name}'"
        self.log.warn_again(f"{what}: IPQ {limit} limit reached")

    def when_applied(self, streams: Iterable[Stream], then: Callable[[], None]) -> None:
        """Call `then`, which answers a request, once everything that these streams took before is applied. If too many
        answers wait, the request is dropped."""
        if not when_all_applied([each.confirming for each in streams], then):
            self.shared.infos.drop()

    def _failed(self, stream: Stream, error: Exception) -> None:
        if isinstance(error, LogFrozen) and error.out_of_space:
            self.shared.out_of_storage(stream.name)
        self.clock.call_later(FROZEN_AGAIN_NS, lambda: self._still_frozen(stream, error))

    def _still_frozen(self, stream: Stream, error: Exception) -> None:
        if not stream.closed and self.streams.get(stream.name) is stream:
            self.log.error(f"stream {stream.name}: still takes no messages: {error}")
            self.clock.call_later(FROZEN_AGAIN_NS, lambda: self._still_frozen(stream, error))

    def _subscribe(self, stream: Stream) -> None:
        if not self.serving:
            return
        if stream.pipeline.serving and not stream.group.handing_over:
            self._subscriptions[stream.name] = [
                self.bus.subscribe(subject.encode(), stream.proposer.take, runs=True, apart=True)
                for subject in stream.config.subjects
            ]
        readable = self.node.replicas.readable(stream.uid)
        if readable and stream.config.allow_direct:
            self.direct.attach(stream)
        if readable and stream.mirroring.answers_for:
            self.direct.attach_as(stream, stream.mirroring.answers_for)

    def _unsubscribe(self, name: str) -> None:
        for subscription in self._subscriptions.pop(name, []):
            subscription.cancel()
        self.direct.detach(name)

    # ------------------------------------------------------------------ begin and end of service
    def serve(self, limits: JetStreamLimits) -> None:
        """Serve the account's clients within these limits."""
        self.limits, began = limits, not self.serving
        self.use.limit(limits)
        if not began:
            return
        self.serving = True
        for stream in self.streams.values():
            self.refresh(stream)
        if self.node.alone:
            self.acks.listen()
        self.node.keeping.served(self.account)

    def withdraw(self) -> None:
        """Stop serving: the account has no JetStream any more. Its streams stay on disk."""
        if not self.serving:
            return
        self.serving = False
        self.acks.close()
        for stream in list(self.streams.values()):
            self.refresh(stream)
        self.node.keeping.withdrawn(self.account)

    def cease(self) -> None:
        """Accept no further messages, so that those in flight complete, however fast clients publish."""
        for subscriptions in self._subscriptions.values():
            while subscriptions:
                subscriptions.pop().cancel()
