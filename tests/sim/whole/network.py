"""Streams of bytes between simulated machines, as TCP has them.

Belongs here: listeners, connections with their latency, back-pressure and end, and cut links. Bytes arrive in order or
the connection ends. What is sent over a cut link waits, as TCP retransmits, until the link is whole again or an end
gives up. A killed process resets its connections; of a machine without power nothing is heard until it runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.events import MS, US, Events
from tests.sim.whole.loop import SimLoop, refused

WINDOW = 256 << 10
"""Bytes that systems take for a receiver who does not read."""

FASTEST_NS = 20 * US
HIGH_WATER = 64 << 10
RETRANSMIT_NS = 400 * MS
"""Longest time after which what waited for a link is sent again."""

Address = tuple[str, int]


class Socket:
    """A bound socket: what `Listener` needs of one."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address

    def dup(self) -> Socket:
        return self

    def listen(self, backlog: int) -> None:
        """Do nothing: clients are taken once a server starts."""

    def close(self) -> None:
        """Do nothing."""


class SimServer(asyncio.AbstractServer):
    """A listening socket of a process."""

    def __init__(self, network: Network, loop: SimLoop, factory: Callable[[], Any], address: Address) -> None:
        self._network, self.loop, self.factory, self.address = network, loop, factory, address
        self.sockets = [Socket(address)]

    async def start_serving(self) -> None:
        self._network.listening[self.address] = self

    def close(self) -> None:
        if self._network.listening.get(self.address) is self:
            del self._network.listening[self.address]

    async def wait_closed(self) -> None:
        """Return at once."""


class End(asyncio.Transport):
    """One end of a connection; `other` is the other one."""

    def __init__(self, network: Network, loop: SimLoop, protocol: Any, peer: Address) -> None:
        super().__init__({"peername": peer})
        self.network, self.loop, self.protocol = network, loop, protocol
        self.other: End
        self.number = 0
        self._closing = self._lost = False
        self._reading_paused = self._writing_paused = False
        self._inbox: list[bytes] = []
        self._feeding = False
        self._eof: BaseException | bool | None = None  # the other end's: True, or the error of a reset
        self._outstanding = 0  # written here, and not taken by the other process
        self._arrival = 0  # of the last chunk at the other end
        self._high = HIGH_WATER
        # Arrivals at the other end that wait for a link.
        self.stuck: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.silent = False  # the machine of this end lost its power

    # ------------------------------------------------------------------ transport
    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        data = bytes(data)
        self._outstanding += len(data)
        self._transmit(len(data), self.other._arrive, data)
        if not self._writing_paused and self.get_write_buffer_size() > self._high:
            self._writing_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def _transmit(self, size: int, arrive: Callable[..., None], *args: Any) -> None:
        """Have something happen at the other end, after all that was sent before."""
        network = self.network
        events = network.events
        arrival = events.now + network.delay(size)
        if arrival <= self._arrival:
            arrival = self._arrival + 1
        self._arrival = arrival
        events.after(arrival - events.now, self._land, arrive, args)

    def _land(self, arrive: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.stuck or self.network.is_cut(self.loop.host, self.other.loop.host):
            if not self.stuck:
                self.network.stuck.append(self)
            self.stuck.append((arrive, args))
        else:
            arrive(*args)

    def release(self) -> None:
        """Send again what waited for the link."""
        stuck, self.stuck = self.stuck, []
        for arrive, args in stuck:
            arrive(*args)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._transmit(0, self.other._ended, True)
            self.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._transmit(0, self.other._ended, ConnectionResetError(104, "Connection reset by peer"))
            self.loop.call_soon(self._lose, None)

    def _lose(self, error: BaseException | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._inbox.clear()
            self.network.forget(self)
            self.protocol.connection_lost(error)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._reading_paused

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._feed_soon()

    def get_write_buffer_size(self) -> int:
        return max(0, self._outstanding - WINDOW)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    # ------------------------------------------------------------------ arrivals
    def _arrive(self, data: bytes) -> None:
        if self.silent or self._lost or self.loop.dead:
            return
        self.network.note(self, data)
        self._inbox.append(data)
        self._feed_soon()

    def _ended(self, how: BaseException | bool) -> None:
        if not self.silent and not self._lost:
            self._eof = how
            self._feed_soon()

    def _feed_soon(self) -> None:
        if not self._feeding and not self._reading_paused and (self._inbox or self._eof is not None):
            self._feeding = True
            self.loop.call_soon(self._feed)

    def _feed(self) -> None:
        self._feeding = False
        if self._lost or (self._reading_paused and not isinstance(self._eof, BaseException)):
            return
        if isinstance(self._eof, BaseException):
            self._lose(self._eof)
            return
        if self._inbox and not self._closing:
            data, self._inbox = b"".join(self._inbox), []
            self.other._taken(len(data))
            self.protocol.data_received(data)
            self._feed_soon()
        elif self._eof is True and not self._closing and not self.protocol.eof_received():
            self.close()

    def _taken(self, size: int) -> None:
        self._outstanding -= size
        if self._writing_paused and self.get_write_buffer_size() <= self._high // 4 and not self.loop.dead:
            self._writing_paused = False
            self.loop.call_soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if not self._lost:
            self.protocol.resume_writing()


class Network:
    """All machines' links. `note(end, data)` is told of all that arrives."""

    def __init__(self, events: Events, random: Random, slowest_ns: int) -> None:
        self.events, self.random = events, random
        self.slowest_ns = slowest_ns
        self._random, self._spread = random.random, slowest_ns - FASTEST_NS
        self.listening: dict[Address, SimServer] = {}
        self.stuck: list[End] = []
        self.note: Callable[[End, bytes], None] = lambda end, data: None
        self.down: set[str] = set()
        """Machines without power."""
        self._cut: set[tuple[str, str]] = set()
        self._ends: dict[End, None] = {}
        self._ports = 30_000
        self._numbers = 0

    def delay(self, size: int = 0) -> int:
        """Return the latency of a buffer: 1 Gbit/s and a random part."""
        return FASTEST_NS + int(self._random() * self._spread) + size * 8

    def server(self, loop: SimLoop, factory: Callable[[], Any], address: Address) -> SimServer:
        """Return a listening socket that does not accept yet."""
        return SimServer(self, loop, factory, address)

    def connect(self, loop: SimLoop, factory: Callable[[], Any], to: Address, made: asyncio.Future[Any]) -> None:
        """Connect a process; `made` gets transport and protocol, or an error. A lost packet gets no answer."""

        def arrive() -> None:
            if to[0] in self.down or self.is_cut(loop.host, to[0]) or self.is_cut(to[0], loop.host):
                return  # the dialling side has a time limit of its own
            server = self.listening.get(to)
            if server is None or server.loop.dead:
                self.events.after(self.delay(), lambda: self._answer(loop, made, refused(to)))
                return
            self._join(loop, factory, server, made)

        self.events.after(self.delay(), arrive)

    @staticmethod
    def _answer(loop: SimLoop, made: asyncio.Future[Any], error: OSError) -> None:
        if not loop.dead:
            loop.call_soon(lambda: None if made.done() else made.set_exception(error))

    def _join(self, loop: SimLoop, factory: Callable[[], Any], server: SimServer, made: asyncio.Future[Any]) -> None:
        self._ports += 1
        there = End(self, server.loop, None, (loop.host, self._ports))
        here = End(self, loop, None, server.address)
        here.other, there.other = there, here
        self._numbers += 1
        here.number = there.number = self._numbers
        self._ends[here] = self._ends[there] = None

        def accept() -> None:
            there.protocol = server.factory()
            there.protocol.connection_made(there)

        def connected() -> None:
            if made.done():  # it was given up
                here.protocol = _Nobody()
                here.abort()
                return
            here.protocol = factory()
            here.protocol.connection_made(here)
            made.set_result((here, here.protocol))

        server.loop.call_soon(accept)
        self.events.after(self.delay(), lambda: None if loop.dead else loop.call_soon(connected))
        here._arrival = there._arrival = self.events.now + self.slowest_ns  # nothing arrives before both ends are made

    def forget(self, end: End) -> None:
        """Forget an end that is closed."""
        self._ends.pop(end, None)

    # ------------------------------------------------------------------ faults
    def is_cut(self, sender: str, to: str) -> bool:
        """Return True if nothing from one machine reaches the other."""
        return (sender, to) in self._cut

    def cut(self, sender: str, to: str) -> None:
        """Let nothing from one machine reach another."""
        self._cut.add((sender, to))

    def heal(self) -> None:
        """Restore all links; what waited arrives within `RETRANSMIT_NS`."""
        self._cut.clear()
        stuck, self.stuck = self.stuck, []
        for end in stuck:
            self.events.after(self.random.randrange(1 * MS, RETRANSMIT_NS), lambda end=end: self._retransmit(end))  # type: ignore[misc]

    def _retransmit(self, end: End) -> None:
        if self.is_cut(end.loop.host, end.other.loop.host):
            self.stuck.append(end)
        else:
            end.release()

    def ended(self, loop: SimLoop, *, power: bool) -> None:
        """Note the end of a process: the system resets its connections, unless the power is cut."""
        for address in [address for address, server in self.listening.items() if server.loop is loop]:
            del self.listening[address]
        if power:
            self.down.add(loop.host)
        for end in [end for end in self._ends if end.loop is loop]:
            end.silent = power
            if not power:
                self._reset(end)

    def started(self, host: str) -> None:
        """Note that a machine runs again: it knows nothing of the connections that it had."""
        self.down.discard(host)
        for end in [end for end in self._ends if end.silent and end.loop.host == host]:
            self._reset(end)

    def _reset(self, end: End) -> None:
        self._ends.pop(end, None)
        end._lost = end._closing = True
        end._transmit(0, end.other._ended, ConnectionResetError(104, "Connection reset by peer"))


class _Nobody(asyncio.Protocol):
    """The protocol of a connection that was given up before it was made."""
