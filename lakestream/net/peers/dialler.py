"""Dialling the other nodes.

Belongs here: one task for each place to dial, from the attempt to the end of its connection; back-off, and which
failures are logged. The handshake is in peers.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import Callable, Container
from random import Random

from lakestream.config.errors import reason_of
from lakestream.config.options import ClusterOptions, RouteUrl
from lakestream.logging import Logger
from lakestream.net import tls as peer_tls
from lakestream.net.peers.link import HANDSHAKE_TIMEOUT, DialPlace, Link
from lakestream.protocol import peer_wire as wire

DIAL_TIMEOUT_S = 2.0
"""Maximum time to connect, before the handshake (2 s)."""

SETTLED_S = 5.0
"""A connection that was up for less (5 s) counts as a failed attempt for the back-off."""

FIRST_DELAY_S = 0.1
"""Pause before the second attempt; doubles with each further one."""

MAX_DELAY_S = 2.0
"""Maximum pause between two attempts."""

FORGET_AFTER = 30
"""Failed attempts in a row (about a minute) after which a discovered node is forgotten. Gossip brings it back while
another node is connected to it."""

FIRST_ATTEMPTS_S = 0.5
"""Maximum time in which a node that starts waits for the first attempt at each route (500 ms)."""

REPORT_EVERY = 3600
"""An unchanged failure is logged once in this many attempts (as in nats-server)."""


class DialTarget:
    """A place to dial.

    Args:
        url: address and credentials.
        explicit: configured, and dialled for ever; else discovered.
        name: the name of the node there, if known.
        retries: attempts at a discovered place; 0: `FORGET_AFTER`.
    """

    def __init__(self, url: RouteUrl, *, explicit: bool, name: str = "", retries: int = 0) -> None:
        self.url = url
        self.explicit = explicit
        self.name = name
        self.myself = False
        self.failures = 0
        self._retries = retries or FORGET_AFTER
        self._reported = ""
        self._same = 0

    @property
    def finished(self) -> bool:
        """Return True if the place is not dialled any more."""
        return self.myself or (not self.explicit and self.failures > self._retries)

    def delay(self, random: Random) -> float:
        """Return the seconds until the next attempt, with a random part so that two nodes do not dial each other in
        step."""
        if not self.failures:
            return FIRST_DELAY_S * random.uniform(0.5, 1)
        return min(MAX_DELAY_S, FIRST_DELAY_S * float(2 ** min(self.failures - 1, 10))) * random.uniform(0.75, 1)

    def reached(self, name: str) -> None:
        """Note that a node answered there."""
        self.name = name
        self.failures = 0
        self._reported = ""

    def failed(self, why: str) -> bool:
        """Note a failed attempt; return True if it should be logged: a new reason, or an old one after a long time."""
        self.failures += 1
        if why != self._reported:
            self._reported, self._same = why, 0
            return True
        self._same += 1
        return self._same % REPORT_EVERY == 0


class Dialler:
    """Keeps dialling the configured and discovered nodes.

    Args:
        options: the cluster block.
        link: makes the protocol of a new connection to a target.
        engaged: returns True if a node is connected, or its own dial is being accepted.
        log: for failures.
    """

    def __init__(
        self, options: ClusterOptions, link: Callable[[DialTarget], Link], engaged: Callable[[str], bool], log: Logger
    ) -> None:
        self._options = options
        self._link = link
        self._engaged = engaged
        self._log = log
        self._random = random.Random()
        self._tls: ssl.SSLContext | None = None
        self._tasks: dict[DialTarget, asyncio.Task[None]] = {}
        self._explicit: list[DialTarget] = []
        self._freed: dict[str, asyncio.Event] = {}
        self._stopped = False
        self._untried: set[DialPlace] = set()
        self._all_tried = asyncio.Event()

    def prepare(self) -> None:
        """Read the certificates. Raises StartError."""
        if self._options.tls is not None:
            self._tls = peer_tls.dialling(self._options.tls)

    def start(self) -> None:
        """Dial the configured routes, as far as they are not dialled yet."""
        known = {target.url for target in self._explicit}
        added = [DialTarget(url, explicit=True) for url in self._options.routes if url not in known]
        self._explicit += added
        for target in added:
            self._pursue(target)
        self._settle()

    async def first_attempts(self) -> None:
        """Return once each place that is known so far was tried: a node there knows this one, or none answered."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_tried.wait(), FIRST_ATTEMPTS_S)
        self._all_tried.set()
        self._untried.clear()

    def tried(self, target: DialPlace) -> None:
        """Note that the first attempt at a place is over, or its connection is up on both sides."""
        self._untried.discard(target)
        self._settle()

    def _settle(self) -> None:
        if not self._untried:
            self._all_tried.set()

    def reload(self, options: ClusterOptions) -> None:
        """Replace the routes; connections stay. Reads the certificates again. Raises StartError."""
        if options.tls is not None and self._tls is not None:
            peer_tls.renew(self._tls, options.tls)
        self._options = options
        for target in self._explicit:
            if target.url not in options.routes and target in self._tasks:
                self._tasks[target].cancel()
        self._explicit = [target for target in self._explicit if target.url in options.routes]
        self.start()

    async def stop(self) -> None:
        """Dial no more. Idempotent."""
        self._stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def learn(self, name: str, url: RouteUrl) -> None:
        """Dial a node that another node reported, unless it is dialled already; its address may have changed."""
        if self._stopped:
            return
        known = [target for target in (*self._tasks, *self._explicit) if target.name == name]
        if not known:
            self._pursue(DialTarget(url, explicit=False, name=name, retries=self._options.connect_retries))
        for target in known:
            if not target.explicit:
                target.url = url

    def freed(self, name: str) -> None:
        """Note that a connection to that node ended: it may have to be dialled."""
        if name in self._freed:
            self._freed.pop(name).set()

    def met(self, up: Container[str]) -> bool:
        """Return True if every configured node is among these, or is this node itself."""
        return all(target.myself or target.name in up for target in self._explicit)

    # ------------------------------------------------------------------ one place
    def _pursue(self, target: DialTarget) -> None:
        task = asyncio.get_running_loop().create_task(self._keep(target))
        self._tasks[target] = task
        task.add_done_callback(lambda _: self._tasks.pop(target))
        if not self._all_tried.is_set():
            self._untried.add(target)

    async def _keep(self, target: DialTarget) -> None:
        """Keep a connection to a place while it is wanted."""
        while not target.finished and not self._superfluous(target):
            if target.name and self._engaged(target.name):
                await self._freed.setdefault(target.name, asyncio.Event()).wait()
            else:
                try:
                    why = await self._dial(target)
                except Exception as error:
                    # Go on dialling after any failure: the place may be a configured one.
                    why = f"{type(error).__name__}: {error}"
                self.tried(target)
                if why and target.failed(why):
                    attempt = f"(attempt {target.failures})"
                    write = self._log.debug if target.url.host.startswith("/") else self._log.error
                    write(f"Error trying to connect to route {target.url.address} {attempt}: {why}")
            await asyncio.sleep(target.delay(self._random))

    def _superfluous(self, target: DialTarget) -> bool:
        """Return True for a discovered place that is the one of a configured node."""
        return not target.explicit and any(target.name == configured.name for configured in self._explicit)

    async def _dial(self, target: DialTarget) -> str:
        """Make one attempt; return why it failed, "" after a connection that was up or when there was one already."""
        link = self._link(target)
        connected = False
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await self._connect(link, target.url)
            connected = True
        except TimeoutError:
            return "timeout"
        except ssl.SSLError as error:
            return f"TLS: {_tls_reason(error)}"
        except OSError as error:
            return reason_of(error)
        finally:
            if not connected:
                link.drop("Dial Error")
        await link.over
        return self._outcome(target, link)

    async def _connect(self, link: Link, url: RouteUrl) -> None:
        options, loop = self._options, asyncio.get_running_loop()
        if url.host.startswith("/"):
            await loop.create_unix_connection(lambda: link, url.host)
        elif options.tls is not None and self._tls is not None:
            name = peer_tls.name_for(url, options.routes)
            await peer_tls.connect(link, url.host, url.port, self._tls, name, options.tls.timeout_ns)
        else:
            await loop.create_connection(lambda: link, url.host, url.port)

    def _outcome(self, target: DialTarget, link: Link) -> str:
        """Return the result of an attempt that connected; see `_dial`."""
        refused = link.refused
        if link.was_up:
            if time.time_ns() - link.start_ns < SETTLED_S * 1e9:
                target.failures += 1
        elif refused is None:
            if link.remote is not None or link.reason == HANDSHAKE_TIMEOUT:
                return link.reason
            hint = "does it want TLS?" if self._options.tls is None else "does it know this node's certificate?"
            return f"{link.reason} before it said HELLO: {hint}"
        elif refused.code == wire.MYSELF:
            self._log.debug(f"Detected route to self, ignoring {target.url.address}")
            target.myself = True
        elif refused.code == wire.ALREADY_CONNECTED:
            target.reached(refused.node)
        else:
            return refused.text
        return ""


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    return error.reason or str(error)
