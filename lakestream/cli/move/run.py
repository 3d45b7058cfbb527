"""The run of a move.

Belongs here: the rehearsal, the link from the new server to the old one, and the loop that looks at both servers and
takes the next step of each stream (plan.py) until all have moved.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from lakestream.cli.link import TransferFailed
from lakestream.cli.move import backup, compare, plan
from lakestream.cli.move.compare import Verify
from lakestream.cli.move.output import Output
from lakestream.cli.move.plan import Obstacle, Seen, Side, Stage, Step, Way
from lakestream.cli.move.sides import LINKS, PROBE_S, Connection, Refused, Unreachable
from lakestream.cli.terminal import seconds, size
from lakestream.protocol.nkeys import credentials, new_curve_key

TICK_S = 0.2
"""Interval at which both servers are looked at."""
PATIENCE_S = 60.0
"""Time for which a server may not answer before the command gives up (60 s); run it again to continue."""
TOGETHER = 8
"""Streams for which a step is taken at the same time."""
RENEW_S = 5.0
"""Interval at which the lease of a temporary link is renewed; it lasts 60 s."""
LINK_S = 15.0
"""Time in which a temporary link must connect (15 s)."""
STILL_S = 5.0
"""Interval of the message that publishers still write."""

_EXISTS = (10058, 10148)
"""Error codes: a stream or consumer of that name exists."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
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


class NotReady(TransferFailed):
    """Raised when obstacles stand in the way; they were reported."""


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

    def __init__(self, old: Connection, new: Connection, options: Options, output: Output) -> None:
        self._old, self._new, self._options, self._output = old, new, options, output
        self._links: dict[str, Any] | None = None
        self._old_side = self._new_side = Side()
        self._names: list[str] = []
        self._ways: dict[str, Way] = {}
        self._api = ""
        """Prefix of the old server's API on the new one."""
        self._renewing: asyncio.Task[None] | None = None
        self._temporary = ""
        """Domain of the temporary link."""
        self._verified: dict[str, int] = {}
        self._restored: set[str] = set()
        self._done: set[str] = set()
        """Streams that an earlier run has moved."""
        self._waits: dict[str, str] = {}

    # ------------------------------------------------------------------ the rehearsal
    async def rehearse(self) -> list[Obstacle]:
        """Find out what would move and what stands in the way; change nothing. Raise TransferFailed."""
        self._links = await self._new.links()
        self._old_side, self._new_side = await self._old.facts(None), await self._new.facts(self._links)
        self._names = plan.selected(await self._old.names(), self._options.patterns)
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
                way, origin, target, self._old_side, self._new_side, taken, len(consumers), self._options.take_consumers
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
        found += await self._link_obstacles()
        for one in found:
            word = "stands in the way" if one.stops else "note"
            prefix = f"{one.stream}: " if one.stream else ""
            self._output.say(
                "obstacle", f"{word}: {prefix}{one.text}", stream=one.stream, stops=one.stops, what=one.text
            )
        stops = sum(one.stops for one in found)
        self._output.say(
            "rehearsed",
            f"{_counted(len(self._names), 'stream')}, about {seconds(total)}"
            + (f"; {_counted(stops, 'obstacle')}" if stops else "; nothing stands in the way"),
            streams=len(self._names),
            obstacles=stops,
            estimate_s=round(total, 1),
        )
        return found

    @property
    def _needs_link(self) -> bool:
        return any(way is not Way.BACKUP for name, way in self._ways.items() if name not in self._done)

    async def _link_obstacles(self) -> list[Obstacle]:
        if not self._needs_link or await self._found_domain():
            return []
        if self._options.domain:
            text = f"the old server cannot be reached from the new one under domain {self._options.domain}"
            return [Obstacle("", text)]
        if self._links is None:
            return [Obstacle("", self._how_to_link())]
        if not self._links.get("allowed"):
            return [Obstacle("", f"the new server opens no link: {self._links.get('reason')}. {self._how_to_link()}")]
        text = "the new server opens a temporary link to the old one, which the rehearsal does not try"
        return [Obstacle("", text, stops=False)]

    def _how_to_link(self) -> str:
        if self._links is None and self._old_side.domain:
            return (
                "the new server has no link to the old one. Configure the old one with a leaf node connection to it "
                '(remote { url: "nats-leaf://…" }, docs/moving.md), or move with --by backup'
            )
        return f"Configure the new server with this block and reload it, or move with --by backup:\n{self._block()}"

    def _block(self) -> str:
        login = self._old.server.login
        fields = ["domain: old", f'url: "{_plain(self._link_urls()[0])}"']
        if login.creds:
            fields.append(f'credentials: "{login.creds}"')
        elif login.nkey:
            fields.append(f'nkey_file: "{login.nkey}"')
        elif login.user or urlsplit(self._old.urls[0]).username:
            fields.append(f'user: "{login.user or urlsplit(self._old.urls[0]).username}", password: "…"')
        if login.tls_ca or login.tls_cert:
            pairs = (("ca_file", login.tls_ca), ("cert_file", login.tls_cert), ("key_file", login.tls_key))
            fields.append("tls { " + ", ".join(f'{key}: "{value}"' for key, value in pairs if value) + " }")
        return f"    remote {{ {', '.join(fields)} }}"

    # ------------------------------------------------------------------ the link
    def _link_urls(self) -> tuple[str, ...]:
        return self._options.link_urls or tuple(self._old.urls)

    def _own_domain(self) -> str:
        """Return the domain of a temporary link: the same for the same server, as its mirrors name it."""
        place = ",".join(sorted(_plain(url) for url in self._link_urls()))
        return "move-" + hashlib.sha256(place.encode()).hexdigest()[:10]

    async def _found_domain(self) -> bool:
        """Look for a domain of the new server that is the old one's."""
        if self._options.domain:
            candidates = [self._options.domain]
        else:
            known = (self._links or {}).get("domains") or []
            candidates = [each for each in (*known, self._old_side.domain) if each and each != self._own_domain()]
        for domain in dict.fromkeys(candidates):
            if domain != self._new_side.domain and await self._is_old(domain):
                self._api = f"$JS.{domain}.API"
                return True
        return False

    async def _is_old(self, domain: str) -> bool:
        """Return True if a domain of the new server shows the same stream as the old server does."""
        name = self._names[0]
        try:
            there = await self._new.ask(f"$JS.{domain}.API.STREAM.INFO.{name}", timeout=PROBE_S)
        except TransferFailed:
            return False
        origin = await self._old.stream(name)
        return origin is not None and there.get("created") == origin.created

    async def _link(self) -> None:
        """Make the old server available on the new one. Raise TransferFailed."""
        if not self._needs_link or await self._found_domain():
            return
        domain = self._own_domain()
        deadline = time.monotonic() + LINK_S
        while True:
            state = await self._open_link(domain)
            if state.get("connected"):
                break
            if time.monotonic() > deadline:
                raise TransferFailed(
                    f"the new server cannot connect to {', '.join(_plain(url) for url in self._link_urls())}: "
                    f"{state.get('error_text', 'no answer')}; give the address that it can reach with --link-url"
                )
            await asyncio.sleep(TICK_S)
        self._temporary, self._api = domain, f"$JS.{domain}.API"
        if not await self._is_old(domain):
            raise TransferFailed("the link of the new server leads to another server than the command's --from")
        self._output.say("link", f"the new server is linked to the old one (domain {domain})", domain=domain)
        self._renewing = asyncio.create_task(self._renew(domain))

    async def _renew(self, domain: str) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            with contextlib.suppress(TransferFailed):
                await self._open_link(domain)

    async def _open_link(self, domain: str) -> dict[str, Any]:
        # The server's key is new after its restart.
        links = await self._new.links()
        if links is None:
            raise Unreachable("the new server does not answer requests for links")
        own = new_curve_key()
        body = msgspec.json.encode(self._login(domain))
        box = base64.b64encode(own.seal(body, str(links["key"]))).decode()
        return await self._new.ask(f"{LINKS}OPEN", {"from": own.public, "box": box})

    def _login(self, domain: str) -> dict[str, Any]:
        login = self._old.server.login
        fields: dict[str, Any] = {"domain": domain, "urls": list(self._link_urls())}
        if login.creds:
            pair = credentials(Path(login.creds).read_bytes())
            fields |= {"jwt": pair.jwt, "nkey": pair.seed}
        elif login.nkey:
            fields["nkey"] = Path(login.nkey).read_text().strip()
        else:
            fields |= {"user": login.user, "password": login.password, "token": login.token}
        if login.tls_ca or login.tls_cert:
            files = {"ca": login.tls_ca, "cert": login.tls_cert, "key": login.tls_key}
            fields["tls"] = {key: Path(file).read_text() for key, file in files.items() if file}
        return fields

    async def close(self, done: bool) -> None:
        """End the run. `done`: the temporary link is not needed any more; else it ends with its lease."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if done and self._temporary:
            with contextlib.suppress(TransferFailed):
                await self._new.ask(f"{LINKS}CLOSE", {"domain": self._temporary})

    # ------------------------------------------------------------------ the move
    async def run(self) -> None:
        """Move the streams. Raise NotReady, TransferFailed."""
        if any(one.stops for one in await self.rehearse()):
            raise NotReady("nothing was changed; remove what stands in the way and run the command again")
        await self._link()
        quiet = _Quiet(self._options.quiet_s)
        unreachable_since: float | None = None
        told_at, ready = 0.0, False
        while True:
            try:
                seen = await self._look()
                now = time.monotonic()
                quiet.note({name: origin.last_seq for name, (origin, _, _) in seen.items()}, now)
                steps = {name: self._step(name, *each, quiet=False) for name, each in seen.items()}
                before, ready = ready, not any(step in _BUSY for step in steps.values())
                if ready and not before:
                    quiet.restart(now)
                    self._ready(steps)
                if ready and quiet.moved and any(step is Step.WAIT_PUBLISHERS for step in steps.values()):
                    self._still_published(quiet.moved, now - told_at >= STILL_S)
                    told_at = now if now - told_at >= STILL_S else told_at
                if ready and quiet.is_over(now):
                    steps = {name: self._step(name, *each, quiet=True) for name, each in seen.items()}
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

    async def _look(self) -> dict[str, tuple[Seen, Seen | None, int]]:
        """Return each stream as both servers show it, and how many consumers of a queue are still to be taken over."""
        room = asyncio.Semaphore(TOGETHER)

        async def look(name: str) -> tuple[str, tuple[Seen, Seen | None, int]]:
            async with room:
                origin, target = await asyncio.gather(self._old.stream(name), self._new.stream(name))
                if origin is None:
                    raise TransferFailed(f"stream {name} is gone on the old server")
                mark = target.mark if target is not None else None
                others = len(await self._to_take(name)) if mark is not None and mark.stage is Stage.SOURCE else 0
                return name, (origin, target, others)

        return dict(await asyncio.gather(*(look(name) for name in self._names)))

    def _step(self, name: str, origin: Seen, target: Seen | None, others: int, *, quiet: bool) -> Step:
        verified = self._verified.get(name) == origin.last_seq
        return plan.next_step(
            self._ways[name],
            origin,
            target,
            quiet=quiet,
            verified=verified,
            restored=name in self._restored,
            others=others,
        )

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

    async def _take(self, seen: Mapping[str, tuple[Seen, Seen | None, int]], steps: Mapping[str, Step]) -> None:
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

    async def _one(self, step: Step, origin: Seen, target: Seen | None) -> None:
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
    async def _create(self, origin: Seen) -> None:
        name, replicas = origin.name, self._new_side.most_replicas
        if self._ways[name] is Way.SOURCE:
            config = plan.moved_config(origin, Stage.QUEUE, replicas)
        else:
            config = plan.mirror_config(origin, self._api, replicas)
        try:
            await self._new.api(f"STREAM.CREATE.{name}", config)
        except Refused as error:
            if error.code not in _EXISTS:
                raise
        self._output.say("created", f"{name}: created on the new server", stream=name, way=self._ways[name].value)

    def _show_copy(self, origin: Seen, target: Seen) -> None:
        name = origin.name
        if self._ways[name] is Way.BACKUP:
            return
        total = origin.messages + (target.messages if self._ways[name] is Way.SOURCE else 0)
        done = target.messages if self._ways[name] is Way.SOURCE else min(target.messages, total)
        self._output.progress("copied", name, done, total, time.monotonic())
        if target.error != self._waits.get(name, ""):
            self._waits[name] = target.error
            if target.error:
                self._output.say("waiting", f"{name} waits: {target.error}", stream=name, reason=target.error)

    async def _verify(self, origin: Seen) -> None:
        name, how = origin.name, self._options.verify
        total = origin.messages if how is Verify.FULL else min(origin.messages, compare.SAMPLE)
        compared = 0

        def advance(count: int) -> None:
            nonlocal compared
            compared += count
            self._output.progress("compared", name, compared, max(total, compared), time.monotonic())

        origin, count = await compare.compare(self._old, self._new, name, how, advance)
        self._verified[name] = origin.last_seq
        self._output.say(
            "verified",
            f"{name}: {_counted(count, 'message')} compared",
            stream=name,
            compared=count,
            messages=origin.messages,
        )

    async def _cut(self, origin: Seen, target: Seen) -> None:
        name = origin.name
        now = await self._old.stream(name)
        if now is None or now.last_seq != origin.last_seq:
            return  # somebody publishes after all: the next look finds it
        replicas = self._new_side.most_replicas
        try:
            await self._update(plan.moved_config(origin, Stage.CUT, replicas, origin.last_seq))
        except Refused as error:
            raise TransferFailed(
                f"{error}. The new server cannot make an ordinary stream of a mirror in this way: delete it with "
                "--undo, and move the stream with --by backup"
            ) from None
        if target.last_seq < origin.last_seq:
            await self._end_at(origin, target)
        self._output.say("cut", f"{name}: cut over", stream=name, last_seq=origin.last_seq)

    async def _end_at(self, origin: Seen, target: Seen) -> None:
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

    async def _create_consumers(self, origin: Seen, last_seq: int) -> int:
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
            except Refused as error:
                if error.code not in _EXISTS:
                    raise
            count += 1
            total = len(requests)
            self._output.progress("consumers", request["stream_name"], count, total, time.monotonic(), "consumers")
        return count

    async def _queue(self, origin: Seen) -> None:
        name, replicas = origin.name, self._new_side.most_replicas
        consumers = [one for one in await self._old.consumers(name) if plan.is_durable(one)]
        requests = [plan.queue_consumer_request(name, one, replicas) for one in consumers]
        count = await self._made_consumers(requests)
        if origin.config.get("retention") == "workqueue":
            # A work queue gives its messages to one consumer only; it keeps them while there is none.
            await self._take_consumers(name)
        await self._update(plan.source_config(origin, self._api, replicas))
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

    async def _by_backup(self, origin: Seen) -> None:
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

    async def _discard(self, origin: Seen, target: Seen) -> None:
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
    def _finished(self, seen: Mapping[str, tuple[Seen, Seen | None, int]]) -> None:
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
            self._temporary = self._own_domain()
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


def _plain(url: str) -> str:
    """Return a URL without credentials."""
    scheme, mark, rest = url.rpartition("://")
    return (scheme + mark or "nats://") + rest.rpartition("@")[2]
