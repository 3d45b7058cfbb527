"""Restoring a stream as of a moment into a new one.

Belongs here: the restore of a session: what the new stream is, whether the user may read the old one, and sending the
archive to the server as any client would, over the session's connection. So the user needs the permissions for
`$JS.API.STREAM.MSG.GET.<stream>`, `$JS.API.STREAM.INFO.<stream>`, `$JS.API.STREAM.RESTORE.<new stream>`, and for the
chunks `$JS.SNAPSHOT.RESTORE.>`. Reading happens in a process of its own (past.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import msgspec

from lakestream.account.backup.past_stream import CHUNK_BYTES, empty_state, restored_config
from lakestream.lake.flush import FLUSH, FLUSH_WAIT_NS
from lakestream.ops.sql import processes
from lakestream.ops.sql.processes import CannotStart, Process, ProcessEnded, ProcessQueryFailed
from lakestream.ports import Clock
from lakestream.protocol.headers import status
from lakestream.protocol.instants import instant
from lakestream_console.client import MAX_WAIT_NS, ConsoleClient, ConsoleError

MAX_RESTORES = 4
"""Restores of all sessions (4); a session has one at a time."""

WINDOW = 4
"""Chunks in flight (4): the page makes requests of the same session meanwhile."""

FINISH_NS = 3_600_000_000_000
"""Time that the server may take to make a stream of the archive (1 h)."""

_PROGRAM = "lakestream_console.past"
_BUCKETS = {"KV_": ("$KV.{}.",), "OBJ_": ("$O.{}.C.", "$O.{}.M.")}
"""Beginnings of names of streams that are buckets, and of the subjects of their messages."""


class RestoreBody(msgspec.Struct, frozen=True):
    """The body of a restore: the stream, the moment (RFC 3339), the new stream, and whether it is to have no limits."""

    stream: str
    as_of: str
    to: str
    unlimited: bool = False


class RestoreProgress(msgspec.Struct):
    """A restore as the page sees it: sequences, and at its end `messages` or `error`. `note`: what is missing of it."""

    stream: str
    to: str
    as_of: str
    first_seq: int = 0
    last_seq: int = 0
    reached: int = 0
    done: bool = False
    messages: int = 0
    note: str = ""
    error: str = ""


class ServerRestores:
    """The restores of a server's sessions.

    Args:
        lake: the lake's root.
    """

    def __init__(self, lake: str, clock: Clock) -> None:
        self._lake, self._clock = lake, clock
        self._shown: dict[ConsoleClient, RestoreProgress] = {}
        self._running: dict[ConsoleClient, Process | None] = {}

    def shown(self, client: ConsoleClient) -> RestoreProgress | None:
        """Return the last restore of a session."""
        return self._shown.get(client)

    def ended(self, client: ConsoleClient) -> None:
        """Forget a session that has ended, and stop its restore."""
        self._shown.pop(client, None)
        if (process := self._running.get(client)) is not None:
            self._clock.spawn(process.kill())

    async def begin(self, client: ConsoleClient, body: RestoreBody) -> RestoreProgress:
        """Begin a restore; it goes on after this returns.

        Raises:
            ConsoleError: it is wrong, not allowed, or beyond a limit.
        """
        if client in self._running:
            raise ConsoleError(429, "another restore of this session is running")
        if len(self._running) >= MAX_RESTORES:
            raise ConsoleError(503, f"{MAX_RESTORES} restores are running: try again")
        try:
            at_ns = instant(body.as_of)
        except ValueError as error:
            raise ConsoleError(400, str(error)) from None
        asked = f"$JS.API.STREAM.MSG.GET.{body.stream}"
        guard = client.connection.guard
        if guard is not None and guard.rules is not None and not guard.rules.may_publish(asked.encode()):
            raise ConsoleError(403, f'Permissions Violation for Publish to "{asked}"')
        self._running[client] = None
        try:
            config, request = await self._prepare(client, body, at_ns)
        except BaseException:
            del self._running[client]
            raise
        progress = self._shown[client] = RestoreProgress(body.stream, body.to, body.as_of)
        self._clock.spawn(self._run(client, config, request, progress))
        return progress

    async def _prepare(
        self, client: ConsoleClient, body: RestoreBody, at_ns: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the configuration of the new stream, and the request to the process."""
        info = await _api(client, f"STREAM.INFO.{body.stream}")
        config = restored_config(info["config"], body.to, unlimited=body.unlimited)
        config.pop("subjects", None)  # the existing stream has them
        request: dict[str, Any] = {
            "lake": self._lake,
            "account": client.connection.account.name,
            "stream": body.stream,
            "at_ns": at_ns,
            "chunk_bytes": min(CHUNK_BYTES, client.connection.max_payload),
        }
        kind = next((each for each in _BUCKETS if body.stream.startswith(each)), "")
        if kind:
            if not body.to.startswith(kind):
                raise ConsoleError(400, f"the name of the new stream begins with {kind}, as it is a bucket")
            old, new = body.stream.removeprefix(kind), body.to.removeprefix(kind)
            renamed = {each.format(old): each.format(new) for each in _BUCKETS[kind]}
            config["subjects"] = [f"{each}>" for each in renamed.values()]
            request |= {"renamed": renamed, "bucket": new}
        with contextlib.suppress(ConsoleError):
            replies, _ = await client.request(f"{FLUSH}{body.stream}".encode(), b"", b"", 1, FLUSH_WAIT_NS)
            if replies and not status(replies[0].header).code:
                request["flush"] = replies[0].payload.decode()
        return config, request

    async def _run(
        self, client: ConsoleClient, config: dict[str, Any], request: dict[str, Any], progress: RestoreProgress
    ) -> None:
        process: Process | None = None
        try:
            process = self._running[client] = await processes.started(_PROGRAM, request)
            await self._send(client, process, config, progress)
        except (ConsoleError, ProcessQueryFailed, CannotStart) as error:
            progress.error = str(error)
        except ProcessEnded:
            progress.error = "the process that reads the stream has ended: it may need more memory than the machine has"
        except Exception:
            progress.error = "the restore has failed: see the server's log"
            raise
        finally:
            progress.done = True
            self._running.pop(client, None)
            if process is not None:
                await process.kill()

    async def _send(
        self, client: ConsoleClient, process: Process, config: dict[str, Any], progress: RestoreProgress
    ) -> None:
        ready = json.loads(process.opened)
        progress.first_seq, progress.last_seq, progress.note = ready["first_seq"], ready["last_seq"], ready["note"]
        answer = await _api(
            client,
            f"STREAM.RESTORE.{config['name']}",
            {"config": config, "state": empty_state(ready["first_seq"])},
        )
        to, sent = answer["deliver_subject"].encode(), asyncio.Semaphore(WINDOW)
        try:
            async with asyncio.TaskGroup() as group:
                while (message := await process.next())[0] != b"d":
                    kind, body = message
                    if kind == b"p":
                        progress.reached = int(body)
                        continue
                    await sent.acquire()
                    group.create_task(_chunk(client, to, body, sent))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        replies, _ = await client.request(to, b"", b"", 1, FINISH_NS)
        outcome = _checked(replies[0].payload if replies else b"", "the server does not answer")
        progress.reached, progress.messages = progress.last_seq, outcome["state"]["messages"]


async def _chunk(client: ConsoleClient, to: bytes, body: bytes, sent: asyncio.Semaphore) -> None:
    """Send a chunk; the server answers each one, with an error or with nothing."""
    try:
        replies, _ = await client.request(to, b"", body, 1, MAX_WAIT_NS)
        if not replies or replies[0].payload:
            _checked(replies[0].payload if replies else b"", "the server takes no more of the stream")
    finally:
        sent.release()


async def _api(client: ConsoleClient, subject: str, body: object = None) -> dict[str, Any]:
    """Make a request of the JetStream API; return its answer. Raises ConsoleError."""
    data = b"" if body is None else msgspec.json.encode(body)
    replies, _ = await client.request(f"$JS.API.{subject}".encode(), b"", data, 1, MAX_WAIT_NS)
    return _checked(replies[0].payload if replies else b"", f"nothing answers requests to $JS.API.{subject}")


def _checked(payload: bytes, otherwise: str) -> dict[str, Any]:
    """Return an answer. Raises ConsoleError with its error; with `otherwise` if it is none."""
    try:
        answer = json.loads(payload)
        error = answer.get("error")
    except (ValueError, AttributeError):
        raise ConsoleError(504, otherwise) from None
    if error:
        raise ConsoleError(error.get("code", 400), error.get("description", otherwise))
    return dict(answer)
