"""The sessions of the console.

Belongs here: session ids, their number and their end, and the limit of failed logins. Times come from a clock; there is
no I/O. An id is 256 random bits, which only the browser's cookie has: the table has its SHA-256, so that neither the
process's memory nor the time of a look-up tells it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Callable

from lakestream.ports import Clock, Timer
from lakestream_console.client import ConsoleClient, ConsoleError

MAX_SESSIONS = 64
"""Sessions at the same time (64). For another one, the session that began without a login and was not used for longest
ends; there is none with a login that ends so."""

IDLE_NS = 30 * 60 * 1_000_000_000
"""A session without a request for this long ends (30 min)."""

LIFETIME_NS = 12 * 3600 * 1_000_000_000
"""A session ends this long after its login, used or not (12 h)."""

LOOK_NS = 30 * 1_000_000_000
"""Interval at which sessions that are over are ended (30 s)."""

MAX_FAILURES = 10
"""Failed logins from one address within `FAILURES_NS` (10), after which its logins are rejected (429)."""

FAILURES_NS = 60 * 1_000_000_000
"""Time in which failed logins count (1 min)."""

MAX_ADDRESSES = 1024
"""Addresses whose failed logins are counted (1,024); the oldest is forgotten for another one."""

MAX_LOGINS = 16
"""Logins that are decided at the same time (16); further ones are rejected (503)."""

_ID_BYTES = 32


class ConsoleSession:
    """One session.

    Attributes:
        csrf: the text that requests must have in a header to change state.
        client: its connection.
        by_login: it began with credentials.
        used_ns: time of its last request; `began_ns`: of its login.
        streams: open responses without an end.
    """

    __slots__ = ("began_ns", "by_login", "client", "csrf", "key", "streams", "used_ns")

    def __init__(self, key: bytes, client: ConsoleClient, now_ns: int, *, by_login: bool) -> None:
        self.key, self.client, self.by_login = key, client, by_login
        self.csrf = secrets.token_urlsafe(_ID_BYTES)
        self.began_ns = self.used_ns = now_ns
        self.streams = 0

    def has_csrf(self, given: str) -> bool:
        """Return True if this is the session's text."""
        return hmac.compare_digest(given.encode(), self.csrf.encode())

    def is_over(self, now_ns: int) -> bool:
        """Return True if the session was not used for too long, or is too old."""
        idle = not self.streams and now_ns - self.used_ns >= IDLE_NS
        return idle or now_ns - self.began_ns >= LIFETIME_NS


class Sessions:
    """All sessions of a server.

    Args:
        clock: for the ends of sessions.
        ended: called with each session that has ended.
    """

    def __init__(self, clock: Clock, ended: Callable[[ConsoleSession], None]) -> None:
        self._clock, self._ended = clock, ended
        self._held: dict[bytes, ConsoleSession] = {}
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._held)

    def find(self, identifier: str) -> ConsoleSession | None:
        """Return the session of an id and note its use; None: there is none."""
        if not identifier:
            return None
        session = self._held.get(_key(identifier))
        if session is None:
            return None
        now = self._clock.steady()
        if session.is_over(now):
            self.end(session)
            return None
        session.used_ns = now
        return session

    def make_room(self) -> None:
        """End a session if there are too many.

        Raises:
            ConsoleError: all of them have logged in.
        """
        if len(self._held) < MAX_SESSIONS:
            return
        now = self._clock.steady()
        for session in [each for each in self._held.values() if each.is_over(now)]:
            self.end(session)
        if len(self._held) >= MAX_SESSIONS:
            others = [each for each in self._held.values() if not each.by_login]
            if not others:
                raise ConsoleError(503, f"the console has {MAX_SESSIONS} sessions already")
            self.end(min(others, key=lambda each: each.used_ns))

    def add(self, client: ConsoleClient, *, by_login: bool) -> tuple[str, ConsoleSession]:
        """Begin a session; return its id.

        Raises:
            ConsoleError: there are too many.
        """
        self.make_room()
        identifier = secrets.token_urlsafe(_ID_BYTES)
        session = ConsoleSession(_key(identifier), client, self._clock.steady(), by_login=by_login)
        self._held[session.key] = session
        if self._timer is None:
            self._timer = self._clock.call_later(LOOK_NS, self._look)
        return identifier, session

    def end(self, session: ConsoleSession) -> None:
        """End a session and its connection. Idempotent."""
        if self._held.pop(session.key, None) is not None:
            session.client.close()
            self._ended(session)

    def _look(self) -> None:
        now = self._clock.steady()
        for session in [each for each in self._held.values() if each.is_over(now)]:
            self.end(session)
        self._timer = self._clock.call_later(LOOK_NS, self._look) if self._held else None


def _key(identifier: str) -> bytes:
    return hashlib.sha256(identifier.encode("utf-8", "replace")).digest()


class LoginLimit:
    """The limit of failed logins of each address. A login counts as failed until it has succeeded."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[str, list[int]] = {}
        self._under_way = 0

    def begin(self, host: str) -> None:
        """Count a login.

        Raises:
            ConsoleError: there are too many.
        """
        if self._under_way >= MAX_LOGINS:
            raise ConsoleError(503, f"{MAX_LOGINS} logins are being decided: try again")
        now, address = self._clock.steady(), _network(host)
        failures = [at for at in self._failures.pop(address, ()) if now - at < FAILURES_NS]
        self._failures[address] = failures
        if len(failures) >= MAX_FAILURES:
            raise ConsoleError(429, f"{MAX_FAILURES} logins from this address have failed: wait a minute")
        failures.append(now)
        self._under_way += 1
        if len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]

    def end(self, host: str, *, succeeded: bool) -> None:
        """Note the result of a login that `begin` counted."""
        self._under_way -= 1
        if succeeded and (failures := self._failures.get(_network(host))):
            failures.pop()


def _network(host: str) -> str:
    """Return what counts as one address: of IPv6 the /64, of which one client has all addresses."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else str(address)
