"""Links between nodes that a test can cut, slow down or break without root: small TCP proxies in a thread.

Belongs here: forwarding bytes between two sockets under the rules of a direction. A cut direction holds what is sent,
as a network that loses every packet does: nothing arrives, no end gets an error, and the bytes arrive after the link is
restored if both ends still want them. nodes.py assigns nodes to links.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from typing import Any

READ_BYTES = 1 << 16
HELD_CHUNKS = 64
"""Maximum chunks in flight in one direction; beyond it the sender is not read, as with a full TCP window."""
CONTROL_TIMEOUT_S = 10.0


class Direction:
    """Rules for bytes from one node to another. Change it through `Network`."""

    def __init__(self, held: int) -> None:
        self.held = held
        self.delay_s = 0.0
        self.bytes_per_s = 0.0  # 0: no limit
        self.rewritten: tuple[bytes, bytes] | None = None
        self.passing = asyncio.Event()
        self.passing.set()
        self.writers: set[asyncio.StreamWriter] = set()
        self.carried = 0


class Network:
    """Event loop of all links of a cluster, in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CONTROL_TIMEOUT_S)

    def direction(self, held: int = HELD_CHUNKS) -> Direction:
        """Return a new direction: open, without delay, with at most `held` chunks in flight."""

        async def make() -> Direction:
            return Direction(held)

        direction: Direction = self._run(make())
        return direction

    def connect(
        self, port: int, target: tuple[str, int], there: Direction, back: Direction, window: int | None = None
    ) -> None:
        """Listen on a port of 127.0.0.1 and forward each connection to `target`.

        `window`: bytes (twice as many on Linux) that wait in the kernel here; the sender gets no TCP acks beyond that.
        """

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                with contextlib.suppress(asyncio.CancelledError):  # `close` cancels them, which streams would report
                    await _serve(reader, writer, target, there, back)
            finally:
                self._tasks.discard(task)

        async def listen() -> None:
            listener = socket.create_server(("127.0.0.1", port))
            if window is not None:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
            self._servers.append(await asyncio.start_server(accept, sock=listener, limit=READ_BYTES))

        self._run(listen())

    def cut(self, direction: Direction) -> None:
        """Stop forwarding; connections stay open and get no error."""
        self._change(direction.passing.clear)

    def restore(self, direction: Direction) -> None:
        """Forward everything at full speed."""

        def restore() -> None:
            direction.delay_s = direction.bytes_per_s = 0.0
            direction.passing.set()

        self._change(restore)

    def slow(self, direction: Direction, delay_s: float = 0.0, bytes_per_s: float = 0.0) -> None:
        """Delay every later chunk by `delay_s` and limit the rate to `bytes_per_s` (0: no limit)."""

        def slow() -> None:
            direction.delay_s, direction.bytes_per_s = delay_s, bytes_per_s

        self._change(slow)

    def rewrite(self, direction: Direction, old: bytes, new: bytes) -> None:
        """Replace the next `old` that one chunk holds by `new`, of the same length."""
        assert len(old) == len(new)

        def rewrite() -> None:
            direction.rewritten = (old, new)

        self._change(rewrite)

    def reset(self, direction: Direction) -> None:
        """Reset the connections of this direction at once."""

        def reset() -> None:
            for writer in list(direction.writers):
                writer.transport.abort()

        self._change(reset)

    def _change(self, change: Any) -> None:
        async def run() -> None:
            change()

        self._run(run())

    def close(self) -> None:
        """Close all links and stop the thread."""

        async def end() -> None:
            for server in self._servers:
                server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONTROL_TIMEOUT_S)
        self._loop.close()


async def _serve(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    target: tuple[str, int],
    there: Direction,
    back: Direction,
) -> None:
    """Forward one accepted connection until either end closes it."""
    far_writer: asyncio.StreamWriter | None = None
    try:
        await there.passing.wait()  # packets of a new connection are lost as well
        far_reader, far_writer = await asyncio.open_connection(*target, limit=READ_BYTES)
        there.writers.add(far_writer)
        back.writers.add(writer)
        async with asyncio.TaskGroup() as group:
            group.create_task(_carry(reader, far_writer, there))
            group.create_task(_carry(far_reader, writer, back))
    except (OSError, ExceptionGroup):
        pass
    finally:
        for end, direction in ((writer, back), (far_writer, there)):
            if end is not None:
                direction.writers.discard(end)
                end.transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
    """Forward bytes one way.

    Raises:
        ConnectionError: at the end of the stream, which closes the other direction too.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(direction.held)

    async def deliver() -> None:
        while True:
            due, data = await queue.get()
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            await direction.passing.wait()
            if not data:
                raise ConnectionError
            if direction.rewritten is not None and direction.rewritten[0] in data:
                data, direction.rewritten = data.replace(*direction.rewritten, 1), None
            writer.write(data)
            await writer.drain()
            direction.carried += len(data)
            if direction.bytes_per_s:
                await asyncio.sleep(len(data) / direction.bytes_per_s)

    async with asyncio.TaskGroup() as group:
        group.create_task(deliver())
        while True:
            await direction.passing.wait()
            data = b""
            with contextlib.suppress(ConnectionError):
                data = await reader.read(READ_BYTES)
            await queue.put((loop.time() + direction.delay_s, data))
            if not data:
                break
