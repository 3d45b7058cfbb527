"""Links between nodes that a test can cut, slow down or break, without root: small TCP proxies in a thread.

Belongs here: forwarding bytes between two sockets under the rules of a direction. A direction that is cut holds what
is sent, as a network does that loses every packet: nothing arrives, nobody is told, and what was sent arrives after
the healing if both ends still want it. Which node is at which end is nodes.py's.
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
"""Chunks on their way in one direction; a sender beyond that is not read from, as with a full TCP window."""
CONTROL_TIMEOUT_S = 10.0


class Direction:
    """What happens to bytes from one node to another. Change it through `Network`."""

    def __init__(self, held: int) -> None:
        self.held = held
        self.delay_s = 0.0
        self.bytes_per_s = 0.0  # 0: as fast as it goes
        self.passing = asyncio.Event()
        self.passing.set()
        self.writers: set[asyncio.StreamWriter] = set()
        self.carried = 0


class Network:
    """The event loop in which all links of a cluster live, in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CONTROL_TIMEOUT_S)

    def direction(self, held: int = HELD_CHUNKS) -> Direction:
        """A new direction, open and fast, with so many chunks on their way at most."""

        async def make() -> Direction:
            return Direction(held)

        direction: Direction = self._run(make())
        return direction

    def connect(
        self, port: int, target: tuple[str, int], there: Direction, back: Direction, window: int | None = None
    ) -> None:
        """Listen on a port of 127.0.0.1 and forward each connection to `target`.

        `window`: so many bytes (twice as many in Linux) wait in the kernel here; more is not confirmed to the sender.
        """

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                with contextlib.suppress(asyncio.CancelledError):  # `close` ends them so, and streams would report it
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
        """Let nothing pass from now on; connections stay, and learn nothing."""
        self._change(direction.passing.clear)

    def restore(self, direction: Direction) -> None:
        """Let everything pass at full speed."""

        def restore() -> None:
            direction.delay_s = direction.bytes_per_s = 0.0
            direction.passing.set()

        self._change(restore)

    def slow(self, direction: Direction, delay_s: float = 0.0, bytes_per_s: float = 0.0) -> None:
        """Every chunk from now on arrives `delay_s` late, and no more than `bytes_per_s` (0: any number) arrive."""

        def slow() -> None:
            direction.delay_s, direction.bytes_per_s = delay_s, bytes_per_s

        self._change(slow)

    def reset(self, direction: Direction) -> None:
        """End the connections that carry this direction, at once."""

        def reset() -> None:
            for writer in list(direction.writers):
                writer.transport.abort()

        self._change(reset)

    def _change(self, change: Any) -> None:
        async def run() -> None:
            change()

        self._run(run())

    def close(self) -> None:
        """End all links and the thread."""

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
    """Carry bytes one way. Raises ConnectionError at the end of the stream, which ends the other way too."""
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
