"""Log lines as nats-server writes them.

Belongs here: the format of a line, its levels, and the file or stderr that lines go to. Test set-ups and log shippers
made for nats-server parse these lines, so the format is part of the interface. Nothing logs per message unless tracing
is on: callers ask `log.tracing` first.
"""

from __future__ import annotations

import os
import time

from lakestream.protocol.api.errors import PublicError

_COLORS = {"INF": "32", "DBG": "36", "TRC": "33", "WRN": "0;93", "ERR": "31", "FTL": "31"}
_ESCAPES = str.maketrans({"\n": "\\n", "\r": "\\r", "\x1b": "\\x1b"})
_STDERR = 2
_REPEATED_S = 1.0
_REPEATED_KEYS = 1000


class Logger:
    """Writes lines `[pid] 2026/01/02 15:04:05.000000 [INF] text` to stderr or to a file.

    Args:
        file: path of the log file; empty means stderr.
        debug: write DBG lines.
        trace: write TRC lines.
        logtime: put the time on each line.
        utc: in UTC instead of local time.
        descriptor: where to write without a file; stderr by default.

    Raises:
        OSError: the file cannot be opened.

    Attributes:
        debugging: whether `debug` writes anything; ask before building a costly text.
        tracing: whether `trace` writes anything.
        quiet: whether `info` writes nothing but with -D: another worker of this server writes the same lines.
        lost: lines that could not be written (disk full, reader of stderr gone). Logging never stops the server.
    """

    def __init__(
        self,
        file: str = "",
        *,
        debug: bool = False,
        trace: bool = False,
        logtime: bool = True,
        utc: bool = False,
        descriptor: int = _STDERR,
    ) -> None:
        self.debugging = debug
        self.tracing = trace
        self.quiet = False
        self.lost = 0
        self._file = file
        self._logtime = logtime
        self._utc = utc
        self._pid = f"[{os.getpid()}] "
        self._second = -1
        self._stamp = ""
        self._repeated: dict[str, float] = {}
        self._fd = descriptor
        if file:
            self._fd = _open(file)
        colored = not file and os.isatty(self._fd)
        self._labels = {
            level: f"[\x1b[{color}m{level}\x1b[0m] " if colored else f"[{level}] " for level, color in _COLORS.items()
        }

    def info(self, text: str) -> None:
        """Log a normal event."""
        if not self.quiet or self.debugging:
            self._write("INF", text)

    def warn(self, text: str) -> None:
        """Log a warning."""
        self._write("WRN", text)

    def warn_again(self, text: str, key: str = "") -> None:
        """Log a warning unless one with this key (the text without one) was logged within a second."""
        key, now = key or text, time.monotonic()
        if now - self._repeated.get(key, -_REPEATED_S) >= _REPEATED_S:
            if len(self._repeated) >= _REPEATED_KEYS:
                self._repeated.clear()
            self._repeated[key] = now
            self.warn(text)

    def error(self, text: str) -> None:
        """Log a failure; the server goes on."""
        self._write("ERR", text)

    def fatal(self, text: str) -> None:
        """Log the last line before exit 1. Does not exit itself."""
        self._write("FTL", text)

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

    def configure(self, *, debug: bool, trace: bool, logtime: bool, utc: bool) -> None:
        """Apply what a reload may change."""
        self.debugging, self.tracing = debug, trace
        self._logtime, self._utc = logtime, utc
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
        old, self._fd = self._fd, fd
        if self._file:
            os.close(old)
        self._file = target
        self.info("File log re-opened")

    def close(self) -> None:
        """Close the log file; lines after that go to stderr. Idempotent."""
        if self._file:
            fd, self._fd, self._file = self._fd, _STDERR, ""
            os.close(fd)

    def _write(self, level: str, text: str) -> None:
        stamp = self._time() if self._logtime else ""
        # One write per line: lines of two threads never mix. A text stays on its line whatever a client put into it.
        line = f"{self._pid}{stamp}{self._labels[level]}{text.translate(_ESCAPES)}\n"
        try:
            os.write(self._fd, line.encode("utf-8", "backslashreplace"))
        except OSError:
            self.lost += 1

    def _time(self) -> str:
        now = time.time_ns()
        second, rest = divmod(now, 1_000_000_000)
        if second != self._second:
            parts = time.gmtime(second) if self._utc else time.localtime(second)
            self._stamp = time.strftime("%Y/%m/%d %H:%M:%S", parts)
            self._second = second
        return f"{self._stamp}.{rest // 1000:06d} "


def _open(file: str) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
