"""Who may connect.

Belongs here: checking the credentials of a CONNECT against the configured token or users. What a user may do once
connected is not decided here.
"""

from __future__ import annotations

import hmac
from typing import Any

from lakestream.server.options import Options

_BCRYPT = ("$2a$", "$2b$", "$2x$", "$2y$")


def same_secret(given: str, stored: str) -> bool:
    """Compare a secret in constant time; `stored` may be a bcrypt hash (as nats-server's `mkpasswd` makes them)."""
    if stored.startswith(_BCRYPT):
        import bcrypt  # only needed with hashed secrets

        try:
            return bcrypt.checkpw(given.encode(), stored.encode())
        except ValueError:
            return False
    return hmac.compare_digest(given.encode(), stored.encode())


class Authenticator:
    """Checks CONNECT options against the server's token or users."""

    def __init__(self, options: Options) -> None:
        self._token = options.token
        self._users = {user.user: user.password for user in options.users}
        self.required = bool(self._token or self._users)

    def check(self, connect: dict[str, Any]) -> bool:
        """Whether the credentials in `connect` are good. Always true when none are configured."""
        if not self.required:
            return True
        if self._token:
            return same_secret(str(connect.get("auth_token") or ""), self._token)
        stored = self._users.get(str(connect.get("user") or ""))
        return stored is not None and same_secret(str(connect.get("pass") or ""), stored)
