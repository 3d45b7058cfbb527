"""Leaf node protocol in a script: frames in and out, without a server behind them.

Belongs here: the connection to a listener of leaf nodes, and its frames as a transcript shows them.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tests.wire import Closed, WireTimeout, header_block

READ_SIZE = 1 << 16
_LOOP = re.compile(r"^\$LDS\.\w+$")
SETTLE_S = 0.15
USUAL: Mapping[str, Any] = {}
"""Nothing but the usual fields of CONNECT."""


class LeafFrame(NamedTuple):
    """One protocol element of a leaf connection; words are those after the verb, without the sizes."""

    verb: str
    words: tuple[str, ...] = ()
    header: bytes = b""
    data: bytes = b""
    text: str = ""


def lmsg(words: str, data: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of a message: `words` are the subject, and perhaps a reply, or `|` or `+` with queues."""
    if headers is None:
        return f"LMSG {words} {len(data)}\r\n".encode() + data + b"\r\n"
    block = header_block(headers)
    return f"HMSG {words} {len(block)} {len(block) + len(data)}\r\n".encode() + block + data + b"\r\n"


class LeafPeer:
    """A connection to the leaf node port of a server.

    Args:
        address: host and port of that listener.
        connect: fields of CONNECT over the usual ones, or a function of INFO that returns them; None sends none.
    """

    def __init__(
        self,
        address: tuple[str, int],
        connect: Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any]] | None = USUAL,
        *,
        timeout: float = 5.0,
    ) -> None:
        self.timeout = timeout
        self.socket = socket.create_connection(address, timeout)
        self.infos: list[dict[str, Any]] = []
        self._buffer = b""
        self._frames: list[LeafFrame] = []
        while not self.infos:
            self._receive(time.monotonic() + timeout)
        self.info = self.infos[0]
        if connect is not None:
            fields = connect(self.info) if callable(connect) else connect
            self.send(self.hello(**fields))

    @staticmethod
    def hello(**fields: Any) -> bytes:
        """Return the bytes of CONNECT as nats-server sends it; None leaves a field out."""
        usual: dict[str, Any] = {
            "version": "2.15.1",
            "server_id": "NLEAF",
            "name": "peer",
            "cluster": "peer",
            "headers": True,
            "compress_mode": "off",
            "remote_account": "$G",
            "protocol": 3,
        }
        said = {key: value for key, value in {**usual, **fields}.items() if value is not None}
        return b"CONNECT " + json.dumps(said).encode() + b"\r\n"

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self.socket.sendall(data)

    def close(self) -> None:
        """Close our end."""
        self.socket.close()

    def raw(self, count: int) -> bytes:
        """Return the next `count` bytes as they come, for what is no frame."""
        self.socket.settimeout(self.timeout)
        while len(self._buffer) < count:
            data = self.socket.recv(READ_SIZE)
            if not data:
                break
            self._buffer += data
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _receive(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise WireTimeout
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(READ_SIZE)
        except TimeoutError:
            raise WireTimeout from None
        except ConnectionError:
            data = b""
        if not data:
            raise Closed
        self._buffer += data
        self._cut()

    def _cut(self) -> None:
        """Queue the frames that became whole; PINGs are answered."""
        while (end := self._buffer.find(b"\r\n")) >= 0:
            line = self._buffer[:end].decode("utf-8", "replace")
            verb, _, rest = line.partition(" ")
            after = end + 2
            if verb in ("LMSG", "HMSG"):
                words = rest.split()
                total = int(words[-1])
                if len(self._buffer) < after + total + 2:
                    return
                sizes = 2 if verb == "HMSG" else 1
                header_end = after + (int(words[-2]) if sizes == 2 else 0)
                header, data = self._buffer[after:header_end], self._buffer[header_end : after + total]
                self._frames.append(LeafFrame(verb, tuple(words[:-sizes]), header, data))
                after += total + 2
            elif verb == "PING":
                self.send(b"PONG\r\n")
            elif verb == "INFO":
                self.infos.append(json.loads(rest))
            else:
                self._frames.append(LeafFrame(verb, tuple(rest.split()), text=rest))
            self._buffer = self._buffer[after:]

    def heard(self, data: bytes = b"") -> list[LeafFrame]:
        """Send `data` and PING, and return all frames up to its PONG; `CLOSED` is the last if the connection ended."""
        try:
            self.send(data + b"PING\r\n")
        except OSError:
            return [*self.rest(), LeafFrame("CLOSED")]
        deadline = time.monotonic() + self.timeout
        frames: list[LeafFrame] = []
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame.verb == "PONG":
                    return frames
                frames.append(frame)
            try:
                self._receive(deadline)
            except Closed:
                return [*frames, *self.rest(), LeafFrame("CLOSED")]
            except WireTimeout:
                return [*frames, *self.rest(), LeafFrame("NOTHING")]

    def until_closed(self) -> list[LeafFrame]:
        """Return all frames until the server closes."""
        deadline = time.monotonic() + self.timeout
        try:
            while True:
                self._receive(deadline)
        except Closed:
            return [*self.rest(), LeafFrame("CLOSED")]
        except WireTimeout:
            return [*self.rest(), LeafFrame("NOTHING")]

    def settled(self) -> list[LeafFrame]:
        """As `heard`, after a moment: interest reaches other connections in the background."""
        time.sleep(SETTLE_S)
        return self.heard()

    def rest(self) -> list[LeafFrame]:
        """Return what was received and not read."""
        frames, self._frames = self._frames, []
        return frames

    def loop_subject(self) -> str:
        """Return the subject of the hub by which loops are found; waits for the first subscriptions."""
        for frame in self.heard():
            if frame.verb == "LS+" and _LOOP.match(frame.words[0]):
                return frame.words[0]
        raise AssertionError("there is no $LDS subscription")


def shown(frames: Iterable[LeafFrame], *, system: bool = False) -> list[Any]:
    """Return frames as a transcript has them: subscriptions first and in order, as they come in any.

    system: also what begins with `$`.
    """
    subscriptions: list[str] = []
    others: list[Any] = []
    for frame in frames:
        if frame.verb in ("LS+", "LS-"):
            if system or not frame.words[0].startswith("$"):
                words = ["$LDS.<id>" if _LOOP.match(word) else word for word in frame.words]
                subscriptions.append(" ".join([frame.verb, *words]))
        elif frame.verb in ("LMSG", "HMSG"):
            if system or not frame.words[0].startswith("$SYS"):
                header = frame.header.decode().split("\r\n")
                others.append([frame.verb, *frame.words, frame.data, *([header] if frame.header else [])])
        else:
            others.append(f"{frame.verb} {frame.text}".strip())
    return [*sorted(subscriptions), *others]
