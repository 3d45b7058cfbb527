"""The run of a move.

Belongs here: the rehearsal, and the loop that looks at both servers and takes the next step of each stream (plan.py)
until all have moved. The link from the new server to the old one is in old_api.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lakestream.account.schemas.bucket import STREAM as SCHEMAS
from lakestream.cli.link import TransferFailed
from lakestream.cli.terminal import seconds, size
from lakestream.schemas.schema import Reference
from lakestream_move import backup, compare, plan
from lakestream_move.compare import Verify
from lakestream_move.old_api import OldApi
from lakestream_move.output import MoveOutput
from lakestream_move.plan import MoveWay, Obstacle, SeenStream, Side, Stage, Step
from lakestream_move.sides import RequestRefused, SideConnection, Unreachable

TICK_S = 0.2
"""Interval at which both servers are looked at."""
PATIENCE_S = 60.0
"""Time for which a server may not answer before the command gives up (60 s); run it again to continue."""
TOGETHER = 8
"""Streams for which a step is taken at the same time."""
STILL_S = 5.0
"""Interval of the message that publishers still write."""

_EXISTS = (10058, 10148)
"""Error codes: a stream or consumer of that name exists."""


class MoveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command.

    Attributes:
        by_backup: move by snapshot and restore.
        domain: the old server's domain on the new one; "": it is found, or a temporary link is opened.
        link_urls: addresses of the old server for the new one; (): those of the command.
        quiet_s: time without a new message after which publishers have stopped.
        assume: publishers have stopped: fail when they have not.
        take_consumers: delete the consumers of queues on the old server.
    """

    patterns: tuple[str, ...]
    by_backup: bool = False
    domain: str = ""
    link_urls: tuple[str, ...] = ()
    quiet_s: float = 5.0
    assume: bool = False
    verify: Verify = Verify.SAMPLE
    take_consumers: bool = False


class MoveObstacles(TransferFailed):
    """Raised when there are obstacles; they were reported."""


class _Quiet:
    """Finds out if publishers have stopped: no last sequence has changed for a time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: dict[str, int] = {}
        self._since = 0.0
        self.moved: dict[str, tuple[int, int]] = {}
        """Streams that have changed at the last look: last sequences before and now."""

    def note(self, last: Mapping[str, int], now: float) -> None:
        """Note the last sequences of the old streams."""
        self.moved = {name: (self._last[name], seq) for name, seq in last.items() if self._last.get(name, seq) != seq}
        if self.moved or not self._last:
            self._since = now
        self._last = dict(last)

    def restart(self, now: float) -> None:
        """Wait for the whole time from now on."""
        self._since = now

    def is_over(self, now: float) -> bool:
        """Return True when they have stopped."""
        return now - self._since >= self._seconds


class Mover:
    """One run of the command.

    Args:
        old, new: open connections.
    """

    def __init__(self, old: SideConnection, new: SideConnection, options: MoveOptions, output: MoveOutput) -> None:
        self._old, self._new, self._options, self._output = old, new, options, output
        self._old_side = self._new_side = Side()
        self._names: list[str] = []
        self._ways: dict[str, MoveWay] = {}
        self._old_api = OldApi(old, new, options.domain, options.link_urls, output)
        self._verified: dict[str, int] = {}
        self._restored: set[str] = set()
        self._done: set[str] = set()
        """Streams that an earlier run has moved."""
        self._waits: dict[str, str] = {}

    # ------------------------------------------------------------------ the rehearsal
    async def rehearse(self) -> list[Obstacle]:
        """Find out what would move and what would prevent it; change nothing. Raise TransferFailed."""
        links = await self._new.links()
        self._old_side, self._new_side = await self._old.facts(None), await self._new.facts(links)
        self._names = plan.selected(await self._old.names(), self._options.patterns)
        self._old_api.note(links, self._old_side, self._new_side, self._names[0])
        found: list[Obstacle] = []
        total = 0.0
        for name in self._names:
            origin = await self._old.stream(name)
            if origin is None:
                raise TransferFailed(f"stream {name} is gone on the old server")
            way = self._ways[name] = plan.way_of(origin, backup=self._options.by_backup)
            target = await self._new.stream(name)
            consumers = [one for one in await self._old.consumers(name) if plan.is_durable(one)]
            if target is not None and target.moved_from(origin):
                self._done.add(name)
            taken: set[str] = set()
            for subject in origin.config.get("subjects") or () if target is None else ():
                taken.update(await self._new.names(subject))
            some = plan.obstacles(
                way,
                origin,
                target,
                self._old_side,
                self._new_side,
                taken,
                len(consumers),
                self._options.take_consumers,
                await self._missing(origin) if target is None else (),
            )
            found += some
            if target is None:
                self._new_side = self._new_side.filled(origin)
            estimate = plan.estimate_s(origin)
            total += estimate
            self._output.say(
                "stream",
                f"{name}: {_counted(origin.messages, 'message')}, {size(origin.bytes)}, "
                f"{_counted(len(consumers), 'consumer')}, as a {way.value}, about {seconds(estimate)}",
                stream=name,
                way=way.value,
                messages=origin.messages,
                bytes=origin.bytes,
                consumers=len(consumers),
                estimate_s=round(estimate, 1),
            )
        if self._needs_link:
            found += await self._old_api.obstacles()
        for one in found:
            word = "obstacle" if one.stops else "note"
            prefix = f"{one.stream}: " if one.stream else ""
            self._output.say(
                "obstacle", f"{word}: {prefix}{one.text}", stream=one.stream, stops=one.stops, what=one.text
            )
        stops = sum(one.stops for one in found)
        self._output.say(
            "rehearsed",
            f"{_counted(len(self._names), 'stream')}, about {seconds(total)}"
            + (f"; {_counted(stops, 'obstacle')}" if stops else "; ready to move"),
            streams=len(self._names),
            obstacles=stops,
            estimate_s=round(total, 1),
        )
        return found

    async def _missing(self, origin: SeenStream) -> list[Reference]:
        """Return the schemas that a stream names, and that neither the new server has nor the move brings."""
        if not self._new_side.lakestream:
            return []
        source = self._old if SCHEMAS in self._names and SCHEMAS not in self._done else self._new
        return [each for each in origin.schemas if not await source.has_schema(each)]

    @property
    def _needs_link(self) -> bool:
        return any(way is not MoveWay.BACKUP for name, way in self._ways.items() if name not in self._done)

    async def close(self, done: bool) -> None:
        """End the run. `done`: a temporary link is not needed any more; else it ends with its lease."""
        await self._old_api.close(done)

    # ------------------------------------------------------------------ the move
    async def run(self) -> None:
        """Move the streams. Raise MoveObstacles, TransferFailed."""
        if any(one.stops for one in await self.rehearse()):
            raise MoveObstacles("nothing was changed; remove the obstacles and run the command again")
        if self._needs_link:
            await self._old_api.open()
        quiet = _Quiet(self._options.quiet_s)
        unreachable_since: float | None = None
        told_at, ready = 0.0, False
        while True:
            try:
                seen = await self._look()
                now = time.monotonic()
                quiet.note({name: origin.last_seq for name, (origin, _, _) in seen.items()}, now)
                steps = self._steps(seen, quiet=False)
                before, ready = ready, not any(step in _BUSY for step in steps.values())
                if ready and not before:
                    quiet.restart(now)
                    self._ready(steps)
                if ready and quiet.moved and any(step is Step.WAIT_PUBLISHERS for step in steps.values()):
                    self._still_published(quiet.moved, now - told_at >= STILL_S)
                    told_at = now if now - told_at >= STILL_S else told_at
                if ready and quiet.is_over(now):
                    steps = self._steps(seen, quiet=True)
                if all(step is Step.DONE for step in steps.values()):
                    self._finished(seen)
                    return
                await self._take(seen, steps)
                unreachable_since = None
            except Unreachable as error:
                now = time.monotonic()
                if unreachable_since is None:
                    unreachable_since = now
                    self._output.say("waiting", f"waiting: {error}", reason=str(error))
                if now - unreachable_since > PATIENCE_S:
                    raise
            await asyncio.sleep(TICK_S)

    async def _look(self) -> dict[str, tuple[SeenStream, SeenStream | None, int]]:
        """Return each stream as both servers show it, and how many consumers of a queue are still to be taken over."""
        room = asyncio.Semaphore(TOGETHER)

        async def look(name: str) -> tuple[str, tuple[SeenStream, SeenStream | None, int]]:
            async with room:
                origin, target = await asyncio.gather(self._old.stream(name), self._new.stream(name))
                if origin is None:
                    raise TransferFailed(f"stream {name} is gone on the old server")
                mark = target.mark if target is not None else None
                others = len(await self._to_take(name)) if mark is not None and mark.stage is Stage.SOURCE else 0
                return name, (origin, target, others)

        return dict(await asyncio.gather(*(look(name) for name in self._names)))

    def _steps(self, seen: Mapping[str, tuple[SeenStream, SeenStream | None, int]], *, quiet: bool) -> dict[str, Step]:
        """Return the next step of each stream. Those that name schemas wait for the bucket of these."""
        arrived = SCHEMAS not in seen or plan.have_arrived(*seen[SCHEMAS][:2])
        return {
            name: plan.next_step(
                self._ways[name],
                origin,
                target,
                quiet=quiet,
                verified=self._verified.get(name) == origin.last_seq,
                restored=name in self._restored,
                others=others,
                schemas=arrived or not origin.schemas,
            )
            for name, (origin, target, others) in seen.items()
        }

    def _ready(self, steps: Mapping[str, Step]) -> None:
        if not any(step is Step.WAIT_PUBLISHERS for step in steps.values()):
            return
        if self._options.assume:
            text = "all messages are here; checking that nobody publishes to the old server"
        else:
            text = "all messages are here. Stop the publishers of the old server now; waiting until they have stopped"
        self._output.say("copied", text)

    def _still_published(self, moved: Mapping[str, tuple[int, int]], tell: bool) -> None:
        shown = ", ".join(f"{name} ({before:,} → {now:,})" for name, (before, now) in moved.items())
        if self._options.assume:
            raise TransferFailed(f"publishers still write to the old server: {shown}; stop them and run it again")
        if tell:
            self._output.say(
                "publishers",
                f"publishers still write to the old server: {shown}",
                streams={name: now for name, (_, now) in moved.items()},
            )

    async def _take(
        self, seen: Mapping[str, tuple[SeenStream, SeenStream | None, int]], steps: Mapping[str, Step]
    ) -> None:
        room = asyncio.Semaphore(TOGETHER)

        async def take(name: str, step: Step) -> None:
            origin, target, _ = seen[name]
            if target is not None and step in _COPYING:
                self._show_copy(origin, target)
            async with room:
                await self._one(step, origin, target)

        results = await asyncio.gather(*(take(name, step) for name, step in steps.items()), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        for failure in sorted(failures, key=lambda each: isinstance(each, Unreachable)):
            raise failure

    async def _one(self, step: Step, origin: SeenStream, target: SeenStream | None) -> None:
        """Take one step."""
        name, replicas = origin.name, self._new_side.most_replicas
        match step:
            case Step.CREATE:
                await self._create(origin)
            case Step.BACKUP:
                await self._by_backup(origin)
            case Step.VERIFY:
                await self._verify(origin)
            case Step.CUT:
                assert target is not None
                await self._cut(origin, target)
            case Step.CONSUMERS:
                assert target is not None
                count = await self._create_consumers(origin, target.last_seq)
                await self._update(plan.remarked(target, Stage.DONE))
                self._moved(name, f"{name}: moved, with {_counted(count, 'consumer')}", consumers=count)
            case Step.QUEUE_CONSUMERS:
                await self._queue(origin)
            case Step.TAKE:
                await self._take_consumers(name)
            case Step.END_SOURCE:
                assert target is not None
                await self._update(plan.moved_config(origin, Stage.DONE, replicas, origin.last_seq))
                self._moved(name, f"{name}: moved; the old stream is empty", messages=target.messages)
            case Step.CONFIRM:
                assert target is not None
                await self._update(plan.remarked(target, Stage.DONE))
                self._moved(
                    name, f"{name}: moved, with {_counted(target.consumers, 'consumer')}", consumers=target.consumers
                )
            case Step.DISCARD:
                assert target is not None
                await self._discard(origin, target)

    def _moved(self, name: str, text: str, **fields: Any) -> None:
        self._output.finished(name)
        self._output.say("moved", text, stream=name, **fields)

    # ------------------------------------------------------------------ single steps
    async def _create(self, origin: SeenStream) -> None:
        name, replicas = origin.name, self._new_side.most_replicas
        if self._ways[name] is MoveWay.SOURCE:
            config = plan.moved_config(origin, Stage.QUEUE, replicas)
        else:
            config = plan.mirror_config(origin, self._old_api.prefix, replicas)
        try:
            await self._new.api(f"STREAM.CREATE.{name}", config)
        except RequestRefused as error:
            if error.code not in _EXISTS:
                raise
        self._output.say("created", f"{name}: created on the new server", stream=name, way=self._ways[name].value)

    def _show_copy(self, origin: SeenStream, target: SeenStream) -> None:
        name = origin.name
        if self._ways[name] is MoveWay.BACKUP:
            return
        total = origin.messages + (target.messages if self._ways[name] is MoveWay.SOURCE else 0)
        done = target.messages if self._ways[name] is MoveWay.SOURCE else min(target.messages, total)
        self._output.progress("copied", name, done, total, time.monotonic())
        if target.error != self._waits.get(name, ""):
            self._waits[name] = target.error
            if target.error:
                self._output.say("waiting", f"{name} waits: {target.error}", stream=name, reason=target.error)

    async def _verify(self, origin: SeenStream) -> None:
        name, how = origin.name, self._options.verify
        total = origin.messages if how is Verify.FULL else min(origin.messages, compare.SAMPLE)
        compared = 0

        def advance(count: int) -> None:
            nonlocal compared
            compared += count
            self._output.progress("compared", name, compared, max(total, compared), time.monotonic())

        exact = self._ways[name] is MoveWay.BACKUP
        origin, count = await compare.compare(self._old, self._new, name, how, advance, exact)
        self._verified[name] = origin.last_seq
        self._output.say(
            "verified",
            f"{name}: {_counted(count, 'message')} compared",
            stream=name,
            compared=count,
            messages=origin.messages,
        )

    async def _cut(self, origin: SeenStream, target: SeenStream) -> None:
        name = origin.name
        now = await self._old.stream(name)
        if now is None or now.last_seq != origin.last_seq:
            return  # somebody publishes after all: the next look finds it
        replicas = self._new_side.most_replicas
        try:
            await self._update(plan.moved_config(origin, Stage.CUT, replicas, origin.last_seq))
        except RequestRefused as error:
            raise TransferFailed(
                f"{error}. The new server cannot make an ordinary stream of a mirror in this way: delete it with "
                "--undo, and move the stream with --by backup"
            ) from None
        if target.last_seq < origin.last_seq:
            await self._end_at(origin, target)
        self._output.say("cut", f"{name}: cut over", stream=name, last_seq=origin.last_seq)

    async def _end_at(self, origin: SeenStream, target: SeenStream) -> None:
        """Give the new stream the last sequence of the old one, whose last messages were deleted."""
        name = origin.name
        if not target.messages and not origin.config.get("deny_purge"):
            await self._new.api(f"STREAM.PURGE.{name}", {"seq": origin.last_seq + 1})
            return
        self._output.say(
            "note",
            f"{name}: the last messages of the old stream were deleted, so the next one gets sequence "
            f"{target.last_seq + 1:,}, not {origin.last_seq + 1:,}",
            stream=name,
            last_seq=target.last_seq,
        )

    async def _update(self, config: Mapping[str, Any]) -> None:
        await self._new.api(f"STREAM.UPDATE.{config['name']}", config)

    async def _create_consumers(self, origin: SeenStream, last_seq: int) -> int:
        consumers = [one for one in await self._old.consumers(origin.name) if plan.is_durable(one)]
        replicas = self._new_side.most_replicas
        requests = [plan.consumer_request(origin.name, one, last_seq, replicas) for one in consumers]
        return await self._made_consumers(requests)

    async def _made_consumers(self, requests: Sequence[Mapping[str, Any]]) -> int:
        """Create consumers, except those that exist; return how many there are."""
        count = 0
        for request in requests:
            config = request["config"]
            name = config.get("durable_name") or config["name"]
            try:
                await self._new.api(f"CONSUMER.DURABLE.CREATE.{request['stream_name']}.{name}", request)
            except RequestRefused as error:
                if error.code not in _EXISTS:
                    raise
            count += 1
            total = len(requests)
            self._output.progress("consumers", request["stream_name"], count, total, time.monotonic(), "consumers")
        return count

    async def _queue(self, origin: SeenStream) -> None:
        name, replicas = origin.name, self._new_side.most_replicas
        consumers = [one for one in await self._old.consumers(name) if plan.is_durable(one)]
        requests = [plan.queue_consumer_request(name, one, replicas) for one in consumers]
        count = await self._made_consumers(requests)
        if origin.config.get("retention") == "workqueue":
            # A work queue gives its messages to one consumer only; it keeps them while there is none.
            await self._take_consumers(name)
        await self._update(plan.source_config(origin, self._old_api.prefix, replicas))
        self._output.say("source", f"{name}: takes the messages over", stream=name, consumers=count)

    async def _to_take(self, name: str) -> list[str]:
        """Return the consumers at the origin of a queue that have moved and are still there."""
        there, here = await asyncio.gather(self._old.consumers(name), self._new.consumers(name))
        ours = {one["name"] for one in here}
        return [one["name"] for one in there if plan.is_durable(one) and one["name"] in ours]

    async def _take_consumers(self, name: str) -> None:
        taken = await self._to_take(name)
        if taken and not self._options.take_consumers:
            raise TransferFailed(f"stream {name} has consumers on the old server; add --take-consumers")
        for one in taken:
            await self._old.api(f"CONSUMER.DELETE.{name}.{one}")
        if taken:
            self._output.say(
                "taken",
                f"{name}: {_counted(len(taken), 'consumer')} deleted on the old server",
                stream=name,
                consumers=taken,
            )

    async def _by_backup(self, origin: SeenStream) -> None:
        name = origin.name
        sent = 0

        def advance(count: int) -> None:
            nonlocal sent
            sent += count
            self._output.progress("sent", name, sent, max(sent, origin.bytes), time.monotonic(), "bytes")

        try:
            await backup.move(self._old, self._new, origin, self._new_side.most_replicas, advance)
        except Unreachable as error:
            raise TransferFailed(f"stream {name}: {error}; run the command again") from None
        self._restored.add(name)
        self._output.say("restored", f"{name}: restored, {size(sent)} sent", stream=name, bytes=sent)

    async def _discard(self, origin: SeenStream, target: SeenStream) -> None:
        """Delete a copy that is not whole. Raise TransferFailed when publishers are the reason."""
        name = origin.name
        assert target.mark is not None
        await self._new.api(f"STREAM.DELETE.{name}")
        if name in self._restored:
            raise TransferFailed(
                f"stream {name}: somebody published to the old server during the backup (sequence {origin.last_seq:,} "
                f"after {target.mark.last_seq:,}); the copy was deleted. Stop the publishers and run it again"
            )
        self._output.say("discarded", f"{name}: what an interrupted run has restored was deleted", stream=name)

    # ------------------------------------------------------------------ the end
    def _finished(self, seen: Mapping[str, tuple[SeenStream, SeenStream | None, int]]) -> None:
        late = {
            name: origin.last_seq - target.mark.last_seq
            for name, (origin, target, _) in seen.items()
            if target is not None and target.mark is not None and origin.last_seq > target.mark.last_seq
        }
        for name, count in late.items():
            self._output.say(
                "late",
                f"{name}: {count:,} messages were published to the old server after the cut-over and are only there",
                stream=name,
                messages=count,
            )
        if late:
            raise TransferFailed("publishers were not stopped: some messages are only on the old server (see above)")
        self._output.say(
            "done",
            f"Moved: {_counted(len(seen), 'stream')}. Point publishers and consumers to {self._new.shown}. The old "
            "streams are still there; delete them when you are sure",
            streams=sorted(seen),
        )

    async def undo(self) -> None:
        """Delete what a move has created before its cut-over. Raise TransferFailed when a stream is past it."""
        self._names = plan.selected(await self._old.names(), self._options.patterns)
        past: list[str] = []
        for name in self._names:
            origin, target = await self._old.stream(name), await self._new.stream(name)
            mark = target.mark if target is not None else None
            if origin is None or mark is None or mark.origin != origin.created:
                continue
            if mark.stage not in (Stage.MIRROR, Stage.RESTORED):
                past.append(name)
                continue
            await self._new.api(f"STREAM.DELETE.{name}")
            self._output.say("undone", f"{name}: deleted on the new server", stream=name)
        if await self._new.links() is not None:
            self._old_api.adopt()
        if past:
            raise TransferFailed(
                f"past the cut-over, or taken out of the old stream: {', '.join(past)}; go back as docs/moving.md says"
            )


_COPYING = (Step.WAIT, Step.WAIT_PUBLISHERS, Step.TAKE, Step.VERIFY)
_BUSY = (Step.CREATE, Step.WAIT, Step.QUEUE_CONSUMERS, Step.TAKE)
"""Steps that come before publishers must have stopped."""


def _counted(count: int, what: str) -> str:
    """Return a number of things."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
