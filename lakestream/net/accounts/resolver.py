"""Resolvers: where the tokens of accounts come from.

Belongs here: the interface of a resolver, and the one that keeps them in memory. A resolver neither decodes nor trusts
a token; operators.py does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

MISSING = "account missing"


class Missing(msgspec.Struct, frozen=True):
    """The answer of a resolver without the token of an account. `reason`: for the log."""

    reason: str = MISSING


Answer = str | Missing
"""The text of a token, or why there is none."""


class ResolverError(Exception):
    """Raised for a token that cannot be stored; the text is nats-server's."""


class Resolver(Protocol):
    """The tokens of accounts. Called in the event loop, as are its callbacks."""

    def lookup(self, account: str, done: Callable[[Answer], None]) -> None:
        """Look the token of an account up, and call back once: at once where nothing has to be waited for.

        Args:
            account: the public key.
        """

    def is_remote(self, account: str) -> bool:
        """Return True if other servers of the cluster would be asked for the token of this account."""

    def preload(self, tokens: Iterable[tuple[str, str]], changed: Callable[[str, str], None]) -> None:
        """Take the tokens of the configuration after a reload, by the keys of their accounts.

        Args:
            changed: called with each account that has another token now, and with that token ("": none).
        """

    def store(self, account: str, token: str, done: Callable[[str], None]) -> None:
        """Keep the token of an account instead of the one before. Call back once, with "" or why it is not kept."""


class MemoryResolver:
    """Keeps tokens until the server stops, or a reload replaces them.

    Args:
        preload: tokens of the configuration, by the keys of their accounts.
    """

    def __init__(self, preload: Iterable[tuple[str, str]] = ()) -> None:
        self._tokens = dict(preload)

    def lookup(self, account: str, done: Callable[[Answer], None]) -> None:
        token = self._tokens.get(account)
        done(Missing() if token is None else token)

    def is_remote(self, account: str) -> bool:
        return False

    def preload(self, tokens: Iterable[tuple[str, str]], changed: Callable[[str, str], None]) -> None:
        before, self._tokens = self._tokens, dict(tokens)
        for account in before.keys() | self._tokens.keys():
            if before.get(account) != (token := self._tokens.get(account)):
                changed(account, token or "")

    def store(self, account: str, token: str, done: Callable[[str], None]) -> None:
        self._tokens[account] = token
        done("")
