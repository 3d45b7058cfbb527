"""The audit trail of an account: who asked, read and changed what, in a stream of its own.

Belongs here: the entries, their chain and signature, and writing them to the stream LAKE_AUDIT (`$LAKE.AUDIT.>`), which
has a table like every stream. audit_check.py verifies them.

An entry is JSON: `chain` (of one process of a server), `n` (from 1), `prev` (SHA-256 of the entry before it; of the
first one that of the stream's last message then), `time`, `server`, `kind`, `who`, `what`, and `lost`: entries that a
full queue has dropped since the one before. Its SHA-256 is the message's id, so that one that is sent twice is stored
once. The header has the server's public key and its signature of the entry.

Requests to JetStream are noted from its advisories, queries where clients of this node ask them, and what other
programs tell (`$LAKE.EVENT.>`) under the name of who tells it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lakestream.config.options import Options
from lakestream.logging import Logger
from lakestream.ports import Bus, ClientInfo, Clock, Single, Subscribed, singly
from lakestream.protocol import headers, nkeys, sql
from lakestream.protocol.api.jsonio import dumps
from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream.protocol.gotime import format_time
from lakestream.protocol.nuid import nuid

STREAM = "LAKE_AUDIT"
SUBJECTS = "$LAKE.AUDIT."
EVENTS = "$LAKE.EVENT."
"""Beginning of the subjects on which other programs tell what they did."""
KEY, SIGNATURE = b"Lake-Audit-Key", b"Lake-Audit-Signature"
MAX_WAITING = 10_000
"""Entries that wait for the stream (10,000); others are counted as lost."""
MAX_TEXT = 16_384
"""Letters of a query or body that an entry has (16 Ki)."""
ANSWER_S = 5.0
AGAIN_S = 2.0
_QUIET = {"INFO", "NAMES", "LIST"}
"""Requests that change nothing and show no message."""
_OF_THE_PAST = (b'"seq"', b'"batch"', b'"start_time"', b'"up_to_seq"', b'"up_to_time"', b'"multi_last"')
"""Fields of requests for messages that are not the last one of a subject."""
_EXISTS = 10058


class AuditTrail:
    """The audit trails of a server.

    Args:
        server: its name.
    """

    def __init__(self, options: Callable[[], Options], server: str, clock: Clock, log: Logger) -> None:
        self.options, self.server, self.clock, self.log = options, server, clock, log
        self._key: nkeys.KeyPair | None = None

    def serve(self, account: str, bus: Bus) -> Subscribed:
        """Write the trail of an account until cancelled."""
        return _Trail(self, account, bus)

    @property
    def key(self) -> nkeys.KeyPair:
        """Return the key of this server, which its first entry makes: `audit.seed` in the storage directory."""
        if self._key is None:
            jetstream = self.options().jetstream
            assert jetstream is not None, "without JetStream there is no account with a trail"
            path = Path(jetstream.store_dir) / "jetstream" / "audit.seed"
            with suppress(FileExistsError), open(path, "x", opener=_private) as file:
                file.write(nkeys.new_seed(nkeys.SERVER))
            self._key = nkeys.key_pair(path.read_text(encoding="ascii").strip(), nkeys.SERVER)
        return self._key


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Trail:
    """The trail of one account."""

    def __init__(self, trails: AuditTrail, account: str, bus: Bus) -> None:
        self._trails, self._account, self._bus = trails, account, bus
        self._chain, self._n, self._prev = nuid(), 0, ""
        self._waiting: deque[tuple[int, str, dict[str, Any], dict[str, Any]]] = deque()
        self._lost = 0
        self._writing = self._ready = self._closed = False
        wanted = {"$JS.EVENT.ADVISORY.API": self._api, f"{EVENTS}>": self._told}
        jetstream = trails.options().jetstream
        for prefix in ["$JS", *([f"$JS.{jetstream.domain}"] if jetstream is not None and jetstream.domain else [])]:
            wanted |= {f"{prefix}.API.STREAM.MSG.GET.*": self._read, f"{prefix}.API.DIRECT.GET.>": self._read}
        if trails.options().sql.enabled:
            wanted |= {sql.QUERY: self._query, f"{sql.QUERY_STREAM}*": self._query}
        self._subscriptions = [
            bus.subscribe(subject.encode(), singly(take), local=True) for subject, take in wanted.items()
        ]

    def cancel(self) -> None:
        """Note nothing more."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.cancel()

    # ------------------------------------------------------------------ what is noted
    def _api(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        if client.kind != "System":
            return  # a client has written it
        found = json.loads(body)
        # Failed reads are noted where they are asked.
        who, asked = found.get("client") or {}, str(found.get("subject"))
        if who.get("kind") == "System" or _QUIET.intersection(asked.split(".")[2:5]) or ".MSG.GET." in asked:
            return
        failed = '"error"' in str(found.get("response"))[:2000].partition('"message"')[0]
        self._note("api", who, {"request": asked, "body": str(found.get("request", ""))[:MAX_TEXT], "failed": failed})

    def _read(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        """Note a read of messages by sequence or time, not the gets of buckets, which want the last one of a key."""
        if reply:
            self._bus.declined(subject, reply)  # others answer it
        if client.kind != "System" and any(word in body for word in _OF_THE_PAST):
            asked = {"request": subject.decode(), "body": body[:MAX_TEXT].decode("utf-8", "replace")}
            self._note("read", _shown(client), asked)

    def _query(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        try:
            asked = sql.decode_request(body)
        except DECODE_ERRORS:
            return  # refused
        what: dict[str, Any] = {"sql": asked.sql[:MAX_TEXT], "engine": asked.engine, "subject": subject.decode()}
        what["reply"] = reply.decode("utf-8", "replace")  # by which the outcome is told
        self._note("sql", _shown(client), what | ({} if asked.as_of is None else {"as_of": asked.as_of}))

    def _told(self, subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
        kind, what = subject.decode("utf-8", "replace").removeprefix(EVENTS), body[:MAX_TEXT].decode("utf-8", "replace")
        with suppress(ValueError):
            what = json.loads(what)
        who = {"server": self._trails.server} if client.kind == "System" else _shown(client)
        self._note("event", who, {"event": kind, "told": what})

    def _note(self, kind: str, who: dict[str, Any], what: dict[str, Any]) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._lost += 1
            return
        self._waiting.append((self._trails.clock.now(), kind, who, what))
        if not self._writing:
            self._writing = True
            self._trails.clock.spawn(self._write())

    # ------------------------------------------------------------------ writing
    async def _write(self) -> None:
        """Write what waits, one entry after the other: each has the digest of the one before."""
        try:
            while self._waiting and not self._closed:
                if not self._ready and not await self._prepare():
                    await asyncio.sleep(AGAIN_S)
                    continue
                entry = self._entry(*self._waiting[0])
                while not await self._stored(*entry):
                    await asyncio.sleep(AGAIN_S)
                    if self._closed:
                        return
                    await self._prepare()  # somebody may have deleted the stream
                self._prev = entry[1]
                self._waiting.popleft()
        finally:
            self._writing = False

    def _entry(self, time_ns: int, kind: str, who: dict[str, Any], what: dict[str, Any]) -> tuple[Single, str]:
        """Return the message of the next entry, and its digest."""
        self._n += 1
        place: dict[str, Any] = {"chain": self._chain, "n": self._n, "prev": self._prev, "time": format_time(time_ns)}
        server, key = self._trails.server, self._trails.key
        lost, self._lost = self._lost, 0
        body = dumps(place | {"server": server, "kind": kind, "who": who, "what": what, "lost": lost})
        digest = hashlib.sha256(body).hexdigest()
        signature = base64.b64encode(key.sign(body))
        lines = [(b"Nats-Msg-Id", digest.encode()), (KEY, key.public.encode()), (SIGNATURE, signature)]
        return Single(f"{SUBJECTS}{kind}".encode(), header=headers.build(lines), payload=body), digest

    async def _stored(self, message: Single, digest: str) -> bool:
        """Return True once the stream has an entry."""
        answer = await self._ask(message.subject, message.payload, message.header)
        if answer is None or answer.get("stream") != STREAM:
            self._ready = False  # the stream may be gone
            self._trails.log.warn(f"account {self._account}: an entry of the audit trail is not stored yet: {answer}")
            return False
        return True

    async def _prepare(self) -> bool:
        """Make the stream if there is none, and find its last entry; return False where that is not possible now."""
        options = self._trails.options().audit
        config = {
            "name": STREAM,
            "subjects": [f"{SUBJECTS}>"],
            "max_bytes": options.max_bytes,
            "max_age": options.max_age_ns,
            "deny_delete": True,
            "deny_purge": True,
            "allow_direct": True,
        }
        made: dict[str, Any] | None = None
        for replicas in (3, 1):
            body = dumps(config | {"num_replicas": replicas})
            made = await self._ask(f"$JS.API.STREAM.CREATE.{STREAM}".encode(), body)
            if made is not None and (made.get("error") or {}).get("err_code") in (None, _EXISTS):
                break
        else:
            self._trails.log.warn(f"account {self._account}: the stream of the audit trail cannot be made: {made}")
            return False
        if not self._n:
            last = await self._ask(f"$JS.API.STREAM.MSG.GET.{STREAM}".encode(), dumps({"last_by_subj": f"{SUBJECTS}>"}))
            if last is None:
                return False
            data = base64.b64decode((last.get("message") or {}).get("data", ""))
            self._prev = hashlib.sha256(data).hexdigest() if data else ""
        self._ready = True
        return True

    async def _ask(self, subject: bytes, body: bytes, header: bytes = b"") -> dict[str, Any] | None:
        """Return the answer to a request; None without one in time."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(subject: bytes, reply: bytes, header: bytes, body: bytes, client: ClientInfo) -> None:
            if not answer.done():
                answer.set_result(body)

        inbox = f"_INBOX.{nuid()}".encode()
        subscription = self._bus.subscribe(inbox, singly(take))
        try:
            if not self._bus.send(Single(subject, inbox, header, body)):
                return None
            async with asyncio.timeout(ANSWER_S):
                found: dict[str, Any] = json.loads(await answer)
                return found
        except (TimeoutError, ValueError):
            return None
        finally:
            subscription.cancel()


def _shown(client: ClientInfo) -> dict[str, Any]:
    shown = {"acc": client.account, "user": client.user, "name": client.name, "host": client.host, "id": client.id}
    return {name: value for name, value in (shown | {"tags": list(client.tags)}).items() if value}
