"""A directory of account tokens.

Belongs here: the files of a resolver, one for each account, and what is known of them without reading: their keys and a
digest of all. All methods but `accounts`, `digest` and `__contains__` block; one thread calls them at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable

import msgspec

from lakestream.net.accounts.resolver import ResolverError
from lakestream.protocol import jwt
from lakestream.protocol.nkeys import ACCOUNT, is_public

DIGEST_BYTES = 32

FULL = "jwt store is full"

_SUFFIX, _DELETED, _UNFINISHED = ".jwt", ".deleted", ".unfinished"


class _Entry(msgspec.Struct, frozen=True):
    """A known file: SHA-256 of its content, and when it was written, in ns since the epoch."""

    digest: int
    written_ns: int


class TokenFiles:
    """The tokens in a directory, `<key of the account>.jwt` each.

    Args:
        directory: exists already.
        limit: number of tokens.
        evicts: at the limit the token that was used least recently goes; else a new one is refused.
        ttl_ns: age at which a token is removed; 0: none.
        hard_delete: deleted tokens are removed; else their files are renamed.
    """

    def __init__(
        self, directory: str, limit: int, *, evicts: bool = False, ttl_ns: int = 0, hard_delete: bool = False
    ) -> None:
        self._directory, self._limit = directory, limit
        self._evicts, self._ttl_ns, self._hard_delete = evicts, ttl_ns, hard_delete
        self._known: dict[str, _Entry] = {}
        """By account, the least recently used first."""
        self._digest = 0

    # ------------------------------------------------------------------ what is known
    def accounts(self) -> list[str]:
        """Return the keys of the accounts."""
        return list(self._known)

    def __contains__(self, account: str) -> bool:
        return account in self._known

    def digest(self) -> bytes:
        """Return the XOR of the SHA-256 of all tokens, by which servers see that they have the same ones."""
        return self._digest.to_bytes(DIGEST_BYTES)

    # ------------------------------------------------------------------ files
    def open(self, preload: Iterable[tuple[str, str]]) -> None:
        """Read the directory, and write those of the preloaded tokens that are missing or newer there.

        Raises OSError, and ResolverError for more preloaded tokens than the limit allows.
        """
        for name in sorted(os.listdir(self._directory)):
            if name.endswith(_UNFINISHED):
                os.unlink(os.path.join(self._directory, name))
            elif name.endswith(_SUFFIX) and is_public(name.removesuffix(_SUFFIX), ACCOUNT):
                self.read(name.removesuffix(_SUFFIX))
        self.add(preload)

    def add(self, preload: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Write those of the preloaded tokens that are missing or newer than in the directory; return them.

        Raises OSError, and ResolverError for more than the limit allows.
        """
        written = [(account, token) for account, token in preload if is_newer(token, self.read(account))]
        for account, token in written:
            self.write(account, token)
        return written

    def read(self, account: str) -> str:
        """Return the token of an account, "" without one; also of a file that something else wrote."""
        if not is_public(account, ACCOUNT):
            return ""
        path = self._path(account)
        try:
            with open(path, "rb") as file:
                content, written_ns = file.read(jwt.MAX_TOKEN_BYTES + 1), os.fstat(file.fileno()).st_mtime_ns
        except (FileNotFoundError, IsADirectoryError):
            self._note(account, None)
            return ""
        if len(content) > jwt.MAX_TOKEN_BYTES:
            self._note(account, None)
            return ""
        if self._ttl_ns and written_ns + self._ttl_ns <= time.time_ns():
            self._unlink(account)
            return ""
        self._note(account, _Entry(_sha256(content), written_ns))
        return content.decode("utf-8", "replace")

    def write(self, account: str, token: str) -> None:
        """Store a token durably, instead of the one before. Raises ResolverError, OSError."""
        if account not in self._known and len(self._known) >= self._limit:
            if not self._evicts:
                raise ResolverError(FULL)
            self._unlink(next(iter(self._known)))
        content = token.encode()
        path = self._path(account)
        unfinished = f"{path}{_UNFINISHED}"
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        os.replace(unfinished, path)
        self._sync()
        self._note(account, _Entry(_sha256(content), time.time_ns()))

    def drop_old(self) -> None:
        """Remove the tokens that have reached their age."""
        until_ns = time.time_ns() - self._ttl_ns
        for account in [account for account, entry in self._known.items() if entry.written_ns <= until_ns]:
            self._unlink(account)

    def delete(self, account: str) -> None:
        """Delete the token of an account, durably. Raises OSError."""
        if self._hard_delete:
            self._unlink(account)
            return
        path = self._path(account)
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, path + _DELETED)
        self._sync()
        self._note(account, None)

    def _unlink(self, account: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(account))
        self._sync()
        self._note(account, None)

    def _path(self, account: str) -> str:
        return os.path.join(self._directory, account + _SUFFIX)

    def _sync(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _note(self, account: str, entry: _Entry | None) -> None:
        before = self._known.pop(account, None)
        if before is not None:
            self._digest ^= before.digest
        if entry is not None:
            self._known[account] = entry
            self._digest ^= entry.digest


def is_newer(token: str, other: str) -> bool:
    """Return True if an account's token was issued later than another text, which may be none."""
    try:
        issued = jwt.decode(token, jwt.AccountClaims).iat
    except jwt.JwtError:
        return False
    try:
        return issued > jwt.decode(other, jwt.AccountClaims).iat
    except jwt.JwtError:
        return True


def _sha256(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest())
