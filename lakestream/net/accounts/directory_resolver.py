"""Tokens of accounts in a directory, which servers of a cluster exchange.

Belongs here: the order of reads and writes of the files, questions to other servers about tokens that are missing here,
and the exchange by which a server that was away gets what it missed. The files are token_files.py's, requests of people
are answered in ops/system/claims.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from lakestream.config.errors import reason_of
from lakestream.config.options import SECOND
from lakestream.logging import Logger
from lakestream.net.accounts.resolver import Answer, Missing, ResolverError
from lakestream.net.accounts.token_files import DIGEST_BYTES, TokenFiles, is_newer
from lakestream.net.hub import Hub
from lakestream.ports import ClientInfo, Clock, Io, Single, Timer, singly
from lakestream.protocol import jwt
from lakestream.protocol.durations import format_duration
from lakestream.protocol.nuid import nuid

MAX_QUEUED = 10_000
"""Reads and writes of the directory that wait (default 10,000); further ones fail."""

MAX_LOOKUPS = 4096
"""Questions to other servers that wait for an answer (default 4,096); further ones fail at once."""

PACK = b"$SYS.REQ.CLAIMS.PACK"
PACK_QUEUE = b"responder"
PACKED_AT_ONCE = 64
"""Tokens that are read and sent at a time to a server that missed some."""

MIN_SWEEP_NS = SECOND
"""Shortest time between two looks for tokens that have reached their age (1 s); else an eighth of that age."""

SLOW_NS = SECOND
"""A question that took longer is logged (1 s)."""

BUSY = "too many requests for the directory wait"

T = TypeVar("T")
Done = Callable[[T | None, str], None]
"""Called in the event loop with the result, or with an error."""


class _Asked(msgspec.Struct):
    """A question about one account. `done` is called with every answer until it is satisfied."""

    account: str
    done: Callable[[Answer], None]
    began_ns: int
    timer: Timer


class DirectoryResolver:
    """The tokens of a directory.

    Args:
        files: opened already.
        hub: of the system account.
        timeout_ns: how long other servers may take to answer.
        interval_ns: between two exchanges with another server; 0: none.
        ttl_ns: age at which a token is removed; 0: none.

    Attributes:
        files: the directory; its methods that block are called through this class.
        changed: called with the account and its new token when another server had a later one.
    """

    def __init__(
        self,
        files: TokenFiles,
        hub: Hub,
        io: Io,
        clock: Clock,
        log: Logger,
        *,
        timeout_ns: int,
        interval_ns: int = 0,
        ttl_ns: int = 0,
    ) -> None:
        self.files = files
        self.changed: Callable[[str, str], None] = lambda account, token: None
        self._hub, self._io, self._clock, self._log = hub, io, clock, log
        self._timeout_ns, self._interval_ns = timeout_ns, interval_ns
        self._queue: deque[tuple[Callable[[], Any], Done[Any]]] = deque()
        self._busy = False
        self._inbox = f"$SYS._INBOX.{nuid()[-8:]}".encode()
        self._asked: dict[bytes, _Asked] = {}
        hub.subscribe(self._inbox + b".lookup.*", singly(self._found))
        if interval_ns:
            hub.subscribe(self._inbox + b".pack", singly(self._packed))
            clock.call_later(interval_ns, self._exchange)
        if ttl_ns:
            self._sweep_ns = max(MIN_SWEEP_NS, ttl_ns // 8)
            clock.call_later(self._sweep_ns, self._sweep)

    # ------------------------------------------------------------------ Resolver
    def lookup(self, account: str, done: Callable[[Answer], None]) -> None:
        def read(token: str | None, error: str) -> None:
            if token:
                done(token)
            elif error:
                done(Missing(error))
            else:
                self._ask(account, done)

        self.read(account, read)

    def is_remote(self, account: str) -> bool:
        return account not in self.files

    def preload(self, tokens: Iterable[tuple[str, str]], changed: Callable[[str, str], None]) -> None:
        def added(written: list[tuple[str, str]] | None, error: str) -> None:
            if error:
                self._log.error(f"DirResolver - resolver_preload: {error}")
            for account, token in written or ():
                changed(account, token)

        self._work(lambda: self.files.add(tokens), added)

    def store(self, account: str, token: str, done: Callable[[str], None]) -> None:
        self._work(lambda: self.files.write(account, token), lambda _, error: done(error))

    # ------------------------------------------------------------------ the directory
    def read(self, account: str, done: Done[str]) -> None:
        """Read the token of an account; "" where the directory has none."""
        self._work(lambda: self.files.read(account), done)

    def delete(self, accounts: Sequence[str], done: Callable[[str], None]) -> None:
        """Delete the tokens of these accounts."""

        def work() -> None:
            for account in accounts:
                self.files.delete(account)

        self._work(work, lambda _, error: done(error))

    def send_all(self, to: bytes) -> None:
        """Publish every token, a message `<account>|<token>` each, and an empty message behind the last."""
        self._send(to, self.files.accounts())

    def _send(self, to: bytes, accounts: Sequence[str]) -> None:
        if not accounts:
            self._hub.send(Single(to))
            return
        if not self._hub.writable(to):
            self._hub.when_writable(to, lambda: self._send(to, accounts))
            return

        def read(tokens: list[tuple[str, str]] | None, error: str) -> None:
            for account, token in tokens or ():
                if token:
                    self._hub.send(Single(to, payload=f"{account}|{token}".encode()))
            self._send(to, accounts[PACKED_AT_ONCE:])

        self._work(lambda: [(account, self.files.read(account)) for account in accounts[:PACKED_AT_ONCE]], read)

    def _sweep(self) -> None:
        self._clock.call_later(self._sweep_ns, self._sweep)
        self._work(self.files.drop_old, lambda _, error: None)

    def _work(self, work: Callable[[], T], done: Done[T]) -> None:
        """Do this in a thread, after all that came before."""
        if len(self._queue) >= MAX_QUEUED:
            done(None, BUSY)
            return
        self._queue.append((work, done))
        self._next()

    def _next(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        work, done = self._queue.popleft()

        def finished(result: object, error: BaseException | None) -> None:
            self._busy = False
            reason = ""
            if isinstance(error, OSError):
                reason = reason_of(error)
                self._log.error(f"DirResolver - {error}")
            elif error is not None:
                reason = str(error)
                if not isinstance(error, ResolverError):
                    self._log.exception("the directory of tokens failed", error)
            done(result, reason)
            self._next()

        self._io.submit(work, finished)

    # ------------------------------------------------------------------ other servers
    def _ask(self, account: str, done: Callable[[Answer], None]) -> None:
        """Ask the other servers for the token of an account."""
        if len(self._asked) >= MAX_LOOKUPS:
            done(Missing("too many accounts are looked up"))
            return
        number = nuid()[-8:].encode()
        timer = self._clock.call_later(self._timeout_ns, lambda: self._end(number, Missing("fetching jwt timed out")))
        self._asked[number] = _Asked(account, done, self._clock.steady(), timer)
        reply = self._inbox + b".lookup." + number
        self._hub.send(Single(f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP".encode(), reply))

    def _found(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        number = subject.rpartition(b".")[2]
        asked = self._asked.get(number)
        token = payload.decode("utf-8", "replace")
        if asked is None or not _is_token_of(asked.account, token):
            return  # too late, or of a server that has none either
        self.store(asked.account, token, lambda error: self._end(number, Missing(error) if error else token))

    def _end(self, number: bytes, answer: Answer) -> None:
        asked = self._asked.pop(number, None)
        if asked is None:
            return
        asked.timer.cancel()
        took_ns = self._clock.steady() - asked.began_ns
        if took_ns >= SLOW_NS:
            self._log.warn(f"Account [{asked.account}] fetch took {format_duration(took_ns)}")
        asked.done(answer)

    def _exchange(self) -> None:
        """Ask another server for what is missing here."""
        self._clock.call_later(self._interval_ns, self._exchange)
        other = self._hub.elsewhere(PACK, PACK_QUEUE)
        if other is not None:
            reply = self._inbox + b".pack"
            other.sink.take(other, Single(PACK, reply, b"", self.files.digest()), 0, 1, self._hub.system)

    def _packed(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, client: ClientInfo) -> None:
        account, _, token = payload.decode("utf-8", "replace").partition("|")
        if not _is_token_of(account, token):
            return  # the end, or nothing that a server sends

        def merge() -> bool:
            later = is_newer(token, self.files.read(account))
            if later:
                self.files.write(account, token)
            return later

        def merged(later: bool | None, error: str) -> None:
            if error:
                self._log.error(f"DirResolver - Error on merge: {error}")
            elif later:
                self.changed(account, token)

        self._work(merge, merged)


def is_digest(payload: bytes) -> bool:
    """Return True if a request for all tokens tells those that its sender has."""
    return len(payload) == DIGEST_BYTES


def _is_token_of(account: str, token: str) -> bool:
    try:
        return bool(token) and jwt.decode(token, jwt.AccountClaims).sub == account
    except jwt.JwtError:
        return False
