"""HTTP proxy before an object store, whose faults are switched while requests come.

Belongs here: passing on requests and answers, one on each connection, and the ways in which they fail. The faults are
those of Amazon S3: no connection, no answer, slow answers, 503 SlowDown, 403 ExpiredToken, 507, answers that are cut;
and those of networks: requests without an answer that take effect, also later, and ones that arrive twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_ERROR = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message>'
    "<Resource>/</Resource><RequestId>0</RequestId></Error>"
)
HEAD_BYTES = 1 << 16
_SIGNATURE = re.compile(rb"signature[=:][0-9a-f]{64}")
"""Signature of a part of a body; it depends on the time of the request."""


@dataclass(frozen=True)
class Fault:
    """Fault of the requests that match.

    Attributes:
        pattern: of fnmatch, for the decoded path with the bucket; `*` also matches `/`.
        methods: of these only; all by default.
        when: of those only for which this is true, by method and path.
        status, code: answer this with an XML error of S3 instead of passing the request on; 0: pass it on.
        delay_s: first wait.
        hang: never answer.
        late: pass it on only once `release` is called, whether or not the client still waits.
        cut: pass it on, and close the connection after half of the answer.
        drop: close the connection without an answer.
        twice: pass it on twice, and give the second answer.
        first: let what clients repeat pass: a request with the method, address and body of one that failed.
        skip: first let so many of the matching requests pass.
        times: so many requests, then no more.
        every: of the matching requests only each such one.
        then: from then on all requests have this fault.
    """

    pattern: str = "*"
    methods: Sequence[str] = ()
    when: Callable[[str, str], bool] | None = None
    status: int = 0
    code: str = ""
    delay_s: float = 0.0
    hang: bool = False
    late: bool = False
    cut: bool = False
    drop: bool = False
    twice: bool = False
    first: bool = False
    skip: int = 0
    times: int = 1 << 62
    every: int = 1
    then: Fault | None = None


THROTTLED = Fault(status=503, code="SlowDown")
EXPIRED = Fault(status=403, code="ExpiredToken")
FULL = Fault(status=507, code="InsufficientStorage", methods=("PUT", "POST"))
HANGING = Fault(hang=True)


class Passed(NamedTuple):
    """A request that was passed on, its bytes, and the status of the answer."""

    method: str
    path: str
    content: bytes
    status: int


@dataclass
class _Counted:
    """A fault, the number of requests that matched it, and those that failed if `first` counts."""

    fault: Fault
    seen: int = 0
    failed: set[tuple[str, str, bytes]] = field(default_factory=set)


class Proxy:
    """The proxy, in a thread of its own, on a port that it keeps.

    Args:
        upstream: address of the store.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._faults: list[_Counted] = []
        self.port = 0
        self.requests = 0
        self.hits = 0
        self.matched: list[str] = []
        """Method and path of each request that matched the first fault, whether or not it failed."""
        self.journal: list[Passed] | None = None
        """The changing requests, while they are recorded."""
        self._released = asyncio.Event()
        self._late: set[asyncio.Task[bytes]] = set()

    @property
    def url(self) -> str:
        """Return the address for clients."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        self._call(self._listen)

    def stop(self) -> None:
        """Close all connections and end."""
        self.refuse()
        self._call(self._cancel)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def refuse(self) -> None:
        """Refuse connections, and close those that there are, until `pass_all`."""
        self._call(self._close)

    def fail(self, *faults: Fault) -> None:
        """Let requests fail from now on; the first fault that matches counts. Without faults all are passed on."""
        self.hits, self.matched = 0, []
        self._faults = [_Counted(fault) for fault in faults]

    def record(self) -> None:
        """Keep the requests that may change something from now on, in the order of their answers."""
        self.journal = []

    def recorded(self) -> list[Passed]:
        """Return the requests since `record`, and keep no more."""
        found, self.journal = self.journal or [], None
        return found

    def repeat(self, requests: Sequence[bytes]) -> list[int]:
        """Pass on requests, one after the other; return the status of each answer."""
        found: list[int] = []

        async def run() -> None:
            for request in requests:
                found.append(_status(await self._pass_on(request)))

        self._call(run)
        return found

    def told(self) -> tuple[str, int, list[str]]:
        """Return the address for clients, the number of faults, and the requests that matched the first one."""
        return self.url, self.hits, self.matched

    def release(self) -> list[int]:
        """Pass on the requests that are late; return the status of each answer."""
        found: list[int] = []

        async def run() -> None:
            self._released.set()
            found.extend(map(_status, await asyncio.gather(*self._late)))
            self._released, self._late = asyncio.Event(), set()

        self._call(run)
        return found

    def pass_all(self) -> None:
        """Pass everything from now on. Requests that hang are cut."""
        self._faults = []
        self._call(self._close)
        self._call(self._listen)

    def _call(self, work: Callable[[], object]) -> None:
        async def run() -> None:
            found = work()
            if asyncio.iscoroutine(found):
                await found

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _cancel(self) -> None:
        """End the requests that hang."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        lines = head[:-4].split(b"\r\n")
        method, target, _ = lines[0].decode("latin-1").split(" ", 2)
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])
        }
        path = unquote(target.partition("?")[0]).lstrip("/")
        fault = self._fault_of(method, path)
        if fault is not None and fault.hang:
            await asyncio.Event().wait()
        if fields.get(b"expect", b"").lower() == b"100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(reader, fields)
        if fault is not None and fault.first and not self._is_first(fault, (method, target, _SIGNATURE.sub(b"", body))):
            fault = None
        if fault is not None and fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        if fault is not None and fault.status:
            answer = _refusal(method, fault)
        else:
            kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in (b"connection", b"expect")]
            request = b"\r\n".join([*kept, b"Connection: close"]) + b"\r\n\r\n" + body
            if fault is not None and fault.late:
                task = asyncio.create_task(self._pass_on_late(request))
                self._late.add(task)
                if fault.drop:
                    return
                answer = await asyncio.shield(task)
            else:
                answer = await self._pass_on(request)
                if self.journal is not None and method in ("PUT", "POST", "DELETE"):
                    self.journal.append(Passed(method, path, request, _status(answer)))
                if fault is not None and fault.twice:
                    answer = await self._pass_on(request)
        if fault is not None and fault.drop:
            return
        if fault is not None and fault.cut:
            body_at = answer.find(b"\r\n\r\n") + 4
            answer = answer[: ((body_at if body_at < len(answer) else 0) + len(answer)) // 2]
        writer.write(answer)
        await writer.drain()

    def _is_first(self, fault: Fault, request: tuple[str, str, bytes]) -> bool:
        """Return False, and count no fault, if a request like this one failed before."""
        rule = next((each for each in self._faults if each.fault is fault), None)
        if rule is None or request in rule.failed:
            self.hits -= 1
            return False
        rule.failed.add(request)
        return True

    async def _pass_on(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self._upstream)
        try:
            writer.write(request)
            await writer.drain()
            answer = await reader.read(-1)
        finally:
            writer.close()
        return answer

    async def _pass_on_late(self, request: bytes) -> bytes:
        await self._released.wait()
        return await self._pass_on(request)

    def _fault_of(self, method: str, path: str) -> Fault | None:
        for rule in self._faults:
            fault = rule.fault
            chosen = fault.when is None or fault.when(method, path)
            if chosen and (not fault.methods or method in fault.methods) and fnmatch(path, fault.pattern):
                rule.seen += 1
                if rule is self._faults[0]:
                    self.matched.append(f"{method} {path}")
                number = rule.seen - fault.skip
                if number > 0 and number % fault.every == 0 and number // fault.every <= fault.times:
                    self.hits += 1
                    if fault.then is not None:
                        self._faults = [_Counted(fault.then)]
                    return fault
        return None


def _status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def _body(reader: asyncio.StreamReader, fields: dict[bytes, bytes]) -> bytes:
    """Read the body of a request, as it is on the wire."""
    if b"chunked" not in fields.get(b"transfer-encoding", b"").lower():
        return await reader.readexactly(int(fields.get(b"content-length", b"0")))
    found = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        found += line + await reader.readexactly(size + 2)
        if not size:
            return found


def _refusal(method: str, fault: Fault) -> bytes:
    body = _ERROR.format(code=fault.code, message=f"{fault.code} of the proxy").encode()
    head = f"HTTP/1.1 {fault.status} {fault.code}\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    if method == "HEAD":
        return f"{head}Content-Length: 0\r\n\r\n".encode()
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
