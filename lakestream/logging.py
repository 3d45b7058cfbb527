"""Log lines as nats-server writes them.

Belongs here: the format of a line, its levels, and the file, stderr or syslog that lines go to. Test set-ups and log
shippers made for nats-server parse these lines, so the format is part of the interface. Nothing logs per message unless
tracing is on: callers ask `log.tracing` first.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from lakestream.protocol.api.errors import PublicError

if TYPE_CHECKING:
    from lakestream.syslog import Syslog

_COLORS = {"INF": "32", "DBG": "36", "TRC": "33", "WRN": "0;93", "ERR": "31", "FTL": "31"}
_WORDS = {"INF": "info", "DBG": "debug", "TRC": "trace", "WRN": "warn", "ERR": "error", "FTL": "fatal"}
_ESCAPES = str.maketrans({"\n": "\\n", "\r": "\\r", "\x1b": "\\x1b"})
_STDERR = 2
_REPEATED_S = 1.0
_REPEATED_KEYS = 1000

BACKLOG_BYTES = 1 << 20
"""Lines that wait for a slow reader of a pipe or terminal (1 MiB); further ones are dropped and counted."""

DRAIN_S = 1.0
"""Longest wait for such lines when the log is closed, and after a fatal error (1 s)."""

RECONNECT_S = 1.0
"""Pause between attempts to reach a syslog daemon that has gone (1 s); lines wait meanwhile."""

_BACKUP = re.compile(r"\.\d{4}(\.\d\d){5}\.\d{9}")


class Lines:
    """Writes whole lines to a descriptor, without waiting for the reader of a pipe, socket or terminal.

    A line that the descriptor takes at once is written by its caller. Otherwise it and those after it wait for a
    thread, which ends when all are written.

    Args:
        descriptor: an open file, pipe, socket or terminal.
        connect: opens a connection in place of one that has broken; None: lines are lost then.

    Attributes:
        lost: lines that could not be written, or were dropped.
    """

    def __init__(self, descriptor: int, connect: Callable[[], int] | None = None) -> None:
        self._fd = descriptor
        self._connect = connect
        self._broken = False
        self._waits = _may_block(descriptor)
        self._changed = threading.Condition()
        self._backlog: deque[bytes] = deque()
        self._bytes = self._dropped = 0
        self._writing = False
        self.lost = 0

    def write(self, line: bytes) -> None:
        """Write a line, or some together, or let it wait; drop it if `BACKLOG_BYTES` wait."""
        if not self._waits:
            self._write(line)
            return
        with self._changed:
            if not self._writing and self._has_room(len(line)) and self._write(line):
                return
            if self._bytes + len(line) > BACKLOG_BYTES:
                self._dropped += line.count(b"\n")
                self.lost += line.count(b"\n")
            else:
                self._backlog.append(line)
                self._bytes += len(line)
                if not self._writing:
                    self._writing = True
                    threading.Thread(target=self._run, name="lakestream-log", daemon=True).start()

    def _has_room(self, size: int) -> bool:
        """Return True if a write does not block: POLLOUT of a pipe means that it takes PIPE_BUF bytes."""
        if size > select.PIPE_BUF:
            return False
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(0))

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._backlog:
                    self._writing = False
                    self._changed.notify_all()
                    return
                line = self._backlog[0]
            while not self._write(line):
                self._renew()
            with self._changed:
                self._bytes -= len(self._backlog.popleft())

    def _write(self, line: bytes) -> bool:
        """Write a line; return False if it has to wait for another connection."""
        if self._broken:
            return False
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError:
            self._broken = self._connect is not None
            self.lost += not self._broken
        return not self._broken

    def _renew(self) -> None:
        """Connect again, after a pause if that fails."""
        assert self._connect is not None
        try:
            fd = self._connect()
        except OSError:
            time.sleep(RECONNECT_S)
            return
        # The number stays, so that whoever closes the log closes this connection.
        os.dup2(fd, self._fd, inheritable=False)
        os.close(fd)
        self._broken = False

    def take_dropped(self) -> int:
        """Return the number of lines that were dropped since the last call, once there is room again; else 0."""
        if not self._dropped or self._writing:
            return 0
        dropped, self._dropped = self._dropped, 0
        return dropped

    def drain(self) -> bool:
        """Wait until no line waits, at most `DRAIN_S`; return True if none does."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._writing, DRAIN_S)


class Logger:
    """Writes lines `[pid] 2026/01/02 15:04:05.000000 [INF] text` to stderr, to a file or to a syslog daemon.

    Args:
        file: path of the log file; empty means stderr.
        max_bytes: size above which the file is renamed and a new one begun; 0 means none.
        max_files: number of files that stay then, with the newest; 0 means all.
        syslog: the daemon that gets lines in place of stderr, if there is no file.
        debug: write DBG lines.
        trace: write TRC lines.
        logtime: put the time on each line.
        utc: in UTC instead of local time.
        as_json: write JSON objects with `time` (UTC, to µs), `level`, `pid` and `message` instead.
        descriptor: where to write without a file; stderr by default.

    Raises:
        OSError: the file cannot be opened, or the daemon not reached.

    A slow reader of stderr does not stop the server: lines wait for it (`BACKLOG_BYTES`), further ones are dropped.

    Attributes:
        debugging: whether `debug` writes anything; ask before building a costly text.
        tracing: whether `trace` writes anything.
        quiet: whether `info` writes nothing but with -D: another worker of this server writes the same lines.
    """

    def __init__(
        self,
        file: str = "",
        *,
        max_bytes: int = 0,
        max_files: int = 0,
        syslog: Syslog | None = None,
        debug: bool = False,
        trace: bool = False,
        logtime: bool = True,
        utc: bool = False,
        as_json: bool = False,
        descriptor: int = _STDERR,
    ) -> None:
        self.debugging = debug
        self.tracing = trace
        self.quiet = False
        self._file = file
        self._max_bytes, self._max_files = max_bytes, max_files
        self._rotation = threading.Lock()
        self._syslog = None if file else syslog
        self._logtime = logtime
        self._utc = utc
        self._json = as_json
        self._pid = f"[{os.getpid()}] "
        self._second = -1
        self._stamp = ""
        self._repeated: dict[str, float] = {}
        if file:
            descriptor = _open(file)
        elif syslog is not None:
            descriptor = syslog.connect()
        fd = self._fd = descriptor
        self._lines = Lines(fd, self._syslog.connect if self._syslog is not None else None)
        self._lost_before = 0
        colored = not file and syslog is None and os.isatty(fd)
        self._labels = {
            level: f"[\x1b[{color}m{level}\x1b[0m] " if colored else f"[{level}] " for level, color in _COLORS.items()
        }

    @property
    def lost(self) -> int:
        """Return the number of lines that could not be written (disk full, reader of stderr gone or slow)."""
        return self._lost_before + self._lines.lost

    def info(self, text: str) -> None:
        """Log a normal event."""
        if not self.quiet or self.debugging:
            self._write("INF", text)

    def info_all(self, texts: Iterable[str]) -> None:
        """Log normal events, a line each, with as few writes as do not block."""
        if self._syslog is not None:  # a datagram each
            for text in texts:
                self.info(text)
        elif not self.quiet or self.debugging:
            together = b""
            for text in texts:
                line = self._encoded("INF", text)
                if together and len(together) + len(line) > select.PIPE_BUF:
                    self._put(together)
                    together = b""
                together += line
            if together:
                self._put(together)

    def warn(self, text: str) -> None:
        """Log a warning."""
        self._write("WRN", text)

    def warn_again(self, text: str, key: str = "") -> None:
        """Log a warning unless one with this key (the text without one) was logged within a second."""
        if self._is_due(key or text, _REPEATED_S):
            self.warn(text)

    def error_again(self, text: str, key: str, interval_s: float) -> None:
        """Log a failure unless one with this key was logged within `interval_s` seconds."""
        if self._is_due(key, interval_s):
            self.error(text)

    def _is_due(self, key: str, interval_s: float) -> bool:
        now = time.monotonic()
        if now - self._repeated.get(key, -interval_s) < interval_s:
            return False
        if len(self._repeated) >= _REPEATED_KEYS:
            self._repeated.clear()
        self._repeated[key] = now
        return True

    def error(self, text: str) -> None:
        """Log a failure; the server goes on."""
        self._write("ERR", text)

    def fatal(self, text: str) -> None:
        """Log the last line before exit 1. Does not exit itself."""
        self._write("FTL", text)
        self._lines.drain()

    def debug(self, text: str) -> None:
        """Log details of connections and streams (-D)."""
        if self.debugging:
            self._write("DBG", text)

    def trace(self, text: str) -> None:
        """Log a protocol line (-V)."""
        if self.tracing:
            self._write("TRC", text)

    def exception(self, text: str, error: BaseException) -> None:
        """Log an unexpected failure as ERR with its traceback, one line each; an error that says what to do in one."""
        if isinstance(error, PublicError):
            self._write("ERR", f"{text}: {error}")
            return
        import traceback  # only when something has gone wrong

        self._write("ERR", f"{text}: {type(error).__name__}: {error}")
        for block in traceback.format_tb(error.__traceback__):
            for line in block.rstrip().splitlines():
                self._write("ERR", line)

    def configure(self, *, debug: bool, trace: bool, logtime: bool, utc: bool, as_json: bool = False) -> None:
        """Apply what a reload may change."""
        self.debugging, self.tracing = debug, trace
        self._logtime, self._utc, self._json = logtime, utc, as_json
        self._second = -1

    def reopen(self, file: str | None = None) -> None:
        """Open the log file anew (SIGUSR1, after a rotation moved it), or go over to another one (reload).

        `file` "" is stderr. When it cannot be opened the old file stays in use and gets an ERR line.
        """
        if file == "":
            self.close()
            return
        target = self._file if file is None else file
        if not target:
            self.info("File log re-open ignored, not a file logger")
            return
        try:
            fd = _open(target)
        except OSError as error:
            self.error(f"cannot re-open log file {target!r}: {error.strerror}; the old one stays in use")
            return
        self._turn_to(fd)
        self._file = target
        self.info("File log re-opened")

    def close(self) -> None:
        """Close the log file or the connection to the daemon; lines after that go to stderr. Idempotent."""
        if self._file or self._syslog is not None:
            self._turn_to(_STDERR)
            self._file = ""
        else:
            self._lines.drain()

    def _turn_to(self, fd: int) -> None:
        """Write to another descriptor from now on."""
        lines, old, own = self._lines, self._fd, self._file or self._syslog is not None
        drained = lines.drain()
        self._lost_before += lines.lost
        self._fd, self._lines, self._syslog = fd, Lines(fd), None
        if own and drained:  # else its thread may still write there
            os.close(old)

    def _write(self, level: str, text: str) -> None:
        self._put(self._encoded(level, text))

    def _put(self, lines: bytes) -> None:
        if dropped := self._lines.take_dropped():
            self._line("WRN", f"{dropped} log lines were dropped: the reader of this log was too slow")
        self._lines.write(lines)
        if self._max_bytes and self._file:
            self._rotate()

    def _rotate(self) -> None:
        """Begin a new file when this one has grown too large. Other workers of the server write to the same file."""
        with self._rotation:
            fd = self._fd
            if not self._file or os.fstat(fd).st_size <= self._max_bytes:
                return
            backup = f"{self._file}.{time.strftime('%Y.%m.%d.%H.%M.%S')}.{time.time_ns() % 1_000_000_000:09d}"
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                first = _is_at(fd, self._file)  # else another worker has renamed it
                if first:
                    os.rename(self._file, backup)
                new = _open(self._file)
            except OSError as error:
                self._max_bytes = 0
                self._line(
                    "ERR", f"log file is not rotated any more: {error}; make room or mend its directory, then restart"
                )
                return
            # In one step, for other threads' lines; the lock ends with the old file.
            os.dup2(new, fd, inheritable=False)
            os.close(new)
            if first:
                self._line("INF", f'Rotated log, backup saved as "{backup}"')
                self._remove_backups()

    def _remove_backups(self) -> None:
        """Remove the oldest files that rotation has left, beyond `max_files`."""
        if not self._max_files:
            return
        directory, name = os.path.split(os.path.abspath(self._file))
        backups = sorted(
            each for each in os.listdir(directory) if each.startswith(name) and _BACKUP.fullmatch(each, len(name))
        )
        for each in backups[: max(len(backups) - self._max_files + 1, 0)]:
            try:
                os.remove(os.path.join(directory, each))
            except OSError as error:
                self._line("ERR", f"cannot remove old log file {each}: {error.strerror}")

    def _line(self, level: str, text: str) -> None:
        self._lines.write(self._encoded(level, text))

    def _encoded(self, level: str, text: str) -> bytes:
        if self._syslog is not None:
            return self._syslog.line(level, text.translate(_ESCAPES))
        if self._json:
            return self._object(level, text)
        stamp = self._time() if self._logtime else ""
        # One write per line: lines of two threads never mix. A text stays on its line whatever a client put into it.
        line = f"{self._pid}{stamp}{self._labels[level]}{text.translate(_ESCAPES)}\n"
        return line.encode("utf-8", "backslashreplace")

    @staticmethod
    def _object(level: str, text: str) -> bytes:
        second, rest = divmod(time.time_ns(), 1_000_000_000)
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{rest // 1000:06d}Z"
        message = text.encode("utf-8", "backslashreplace").decode()
        line = {"time": stamp, "level": _WORDS[level], "pid": os.getpid(), "message": message}
        return msgspec.json.encode(line) + b"\n"

    def _time(self) -> str:
        now = time.time_ns()
        second, rest = divmod(now, 1_000_000_000)
        if second != self._second:
            parts = time.gmtime(second) if self._utc else time.localtime(second)
            self._stamp = time.strftime("%Y/%m/%d %H:%M:%S", parts)
            self._second = second
        return f"{self._stamp}.{rest // 1000:06d} "


def _may_block(descriptor: int) -> bool:
    """Return True if a reader decides when this descriptor takes bytes, and the system can tell whether it does."""
    try:
        return hasattr(select, "poll") and not stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:  # closed: writes fail at once
        return False


def _is_at(descriptor: int, path: str) -> bool:
    """Return True if the path names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _open(file: str) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
