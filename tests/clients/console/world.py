"""Settings and helpers of the tests of the console's requests."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Callable

from tests.console import Browser, Reply
from tests.keys import user_key
from tests.servers import Server

USERS = """
accounts {
  A { jetstream: enabled, users: [
    { user: ann, password: secret-of-ann }
    { user: reader, password: secret-of-reader,
      permissions { publish: ["$JS.API.>"], subscribe: ["_INBOX.>", "seen.>"] } }
    { user: own, password: secret-of-own, permissions { subscribe: ["_INBOX_own.>"] } }
    { nkey: %s } ] }
  B { jetstream: enabled, users: [{ user: bob, password: secret-of-bob }] }
  SYS { users: [{ user: sys, password: secret-of-sys }] }
}
system_account: SYS
"""
OWNER = user_key("console")


Start = Callable[..., Server]


def logged_in(server: Server, **credentials: str) -> Browser:
    """Return a browser that has logged in."""
    browser = Browser(server)
    reply = browser.log_in(**credentials)
    assert reply.status == 200, reply
    return browser


def data(reply: Reply, index: int = 0) -> bytes:
    """Return the payload of one of the replies of a request."""
    return b64decode(reply.json["replies"][index]["data_base64"])


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for what happens in the server."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
