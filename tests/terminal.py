"""A program in a terminal of its own, for tests of screens, colours and keys.

Belongs here: starting it on a pseudo terminal, reading what it shows until a text appears, and typing.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

TIMEOUT_S = 30.0
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38;[\d;]+)(?:;\d+)*m")
"""A sequence that sets a colour."""
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")


class Terminal:
    """A process whose standard streams are a terminal of 120 by 40; `shown` is all that it wrote."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**environ, "TERM": "xterm-256color", **(environment or {})},
        )
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    @property
    def text(self) -> str:
        """Return what was shown, without control sequences."""
        return _SEQUENCE.sub("", self.shown)

    @property
    def mode(self) -> object:
        """Return the settings of the terminal."""
        return termios.tcgetattr(self._slave)

    def read_until(self, text: str) -> None:
        """Read until a text is shown that was not shown before."""
        begins, deadline = len(self.shown), time.monotonic() + TIMEOUT_S
        while text not in _SEQUENCE.sub("", self.shown[begins:]):
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} is not shown: {self.text[-2000:]}"
            self._read(left)

    def type(self, keys: str) -> None:
        """Type keys."""
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        """Send SIGINT, as the terminal does for Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def wait(self, timeout: float = TIMEOUT_S) -> int:
        """Read until the process ends; return its exit code."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.text[-2000:]}"
            self._read(0.1)
        while self._read(0):
            pass
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        self.shown += os.read(self._master, 65536).decode("utf-8", "replace")
        return True
