"""One process that reads the lake for a server: for a query (packages/sql/lakestream_sql/child.py), or a restore.

Belongs here: starting and ending it, and the messages with it. packages/sql/lakestream_sql/pool.py says which query has
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import struct
import sys

import msgspec

from lakestream.extras import DISTRIBUTION
from lakestream.log.sealing.keys import VARIABLE
from lakestream.ports import Timer

INSTALL = f"pip install '{DISTRIBUTION}[sql]'"
START_S = 60.0
"""Time until a process takes queries (60 s); it is not part of the time of a query."""
_PACKAGES = ("lakestream_sql", "duckdb", "duckdb_extension_delta", "deltalake", "pyarrow", "fsspec")
_PASSED = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PASSED_KINDS = ("AWS_", "AZURE_", "GOOGLE_", "HTTPS_PROXY", "NO_PROXY", "https_proxy", "no_proxy", "LC_", "PYTHON")
"""Variables of the environment that a process gets, by their names or beginnings; others may be secrets."""

_LENGTH, _HEAD = struct.Struct(">I"), struct.Struct(">Ic")


def missing() -> str:
    """Return what has to be installed for SQL; "" for nothing."""
    absent = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    return f"SQL needs {', '.join(absent)}: {INSTALL}" if absent else ""


class ProcessQueryFailed(Exception):
    """Raised for a query that its process rejects. `code`: see docs/sql-over-nats.md#responses; `is_end`: the process
    ends; else it goes on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.is_end = code, code >= 500


class ProcessEnded(Exception):
    """Raised when the process of a query has ended."""

    code = 500

    def __init__(self) -> None:
        super().__init__("the process of the query has ended: the query may need more memory than it has")


class CannotStart(Exception):
    """Raised when no process can be started."""

    code = 503

    def __init__(self, error: OSError) -> None:
        super().__init__(f"a process for the query cannot be started: {error.strerror}")


class Process:
    """One process, of one account.

    Attributes:
        used_ns: when its last query ended.
        timer: ends it while it is idle.
        opened: the body of its first answer.
        is_idle: it takes a query.
        waits: it has told a part of a result, and waits for a decision about the rest.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.used_ns = 0
        self.opened = b""
        self.timer: Timer | None = None
        self.is_idle, self.waits = True, False

    async def ask(self, query: object) -> None:
        """Send a query. Raises ProcessEnded."""
        self.is_idle = False
        await self.say(query)

    async def decide(self, *, go: bool) -> None:
        """Tell it to go on with its query, or to end that without an answer. Raises ProcessEnded."""
        await self.say({"go": go})
        self.is_idle, self.waits = not go, False

    async def say(self, message: object) -> None:
        """Send a message as JSON. Raises ProcessEnded."""
        await self.pass_on(msgspec.json.encode(message))

    async def pass_on(self, body: bytes) -> None:
        """Send a message that is encoded already. Raises ProcessEnded."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(_LENGTH.pack(len(body)) + body)
            await self._process.stdin.drain()
        except ConnectionError:
            raise ProcessEnded from None

    async def hear(self) -> bytes:
        """Return the body of the next message. Raises ProcessQueryFailed, ProcessEnded."""
        return (await self.next())[1]

    async def next(self) -> tuple[bytes, bytes]:
        """Return kind and body of the next message. Raises ProcessQueryFailed, ProcessEnded."""
        assert self._process.stdout is not None
        try:
            size, kind = _HEAD.unpack(await self._process.stdout.readexactly(_HEAD.size))
            body = await self._process.stdout.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ProcessEnded from None
        self.waits = kind in (b"c", b"b")
        if kind == b"e":
            failure = json.loads(body)
            error = ProcessQueryFailed(failure["code"], failure["error"])
            self.is_idle = not error.is_end
            raise error
        self.is_idle |= kind == b"s"
        return kind, body

    @property
    def ended(self) -> bool:
        """Return True if there is no such process any more."""
        return self._process.returncode is not None

    async def kill(self) -> None:
        """End the process at once."""
        if self.timer is not None:
            self.timer.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


async def started(program: str, opening: object) -> Process:
    """Start a process of a program, confined to few variables; say its first message and wait for its first answer.

    Raises:
        CannotStart, ProcessEnded.
        ProcessQueryFailed: the program answers with an error.
    """
    try:
        made = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # nothing is imported from the working directory
            "-m",
            program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment(VARIABLE),  # it reads tables and staged segments, which may be encrypted
            start_new_session=True,
            close_fds=True,
        )
    except OSError as error:
        raise CannotStart(error) from None
    process = Process(made)
    try:
        async with asyncio.timeout(START_S):
            await process.say(opening)
            process.opened = await process.hear()
    except TimeoutError:
        await process.kill()
        raise ProcessEnded from None
    except BaseException:
        await process.kill()
        raise
    return process


def environment(*more: str) -> dict[str, str]:
    """Return the variables of a process, and of others those named `more`."""
    passed = {*_PASSED, *more}
    return {name: value for name, value in os.environ.items() if name in passed or name.startswith(_PASSED_KINDS)}
