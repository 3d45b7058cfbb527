"""The words for what a client may not do: those it is told, and those in the log.

Belongs here: texts only, as nats-server has them. Who is refused what is decided elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

from lakestream.protocol.goquote import quoted


class Refusal(NamedTuple):
    """What the client is told, and what the log says of it."""

    told: str
    logged: str


def publish(subject: bytes) -> Refusal:
    """It may not publish to this subject."""
    shown = quoted(subject)
    return Refusal(f"Permissions Violation for Publish to {shown}", f"Publish Violation - Subject {shown}")


def reply(subject: bytes) -> Refusal:
    """It may not ask for answers at this subject."""
    shown = quoted(subject)
    return Refusal(f"Permissions Violation for Publish with Reply of {shown}", f"Publish Violation - Reply {shown}")


def subscribe(subject: bytes, queue: bytes, sid: bytes) -> Refusal:
    """It may not subscribe so."""
    told = f"Permissions Violation for Subscription to {quoted(subject)}"
    logged = f"Subscription Violation - Subject {quoted(subject)}"
    if queue:
        told += f" using queue {quoted(queue)}"
        logged += f", Queue: {quoted(queue)}"
    return Refusal(told, f"{logged}, SID {sid.decode('utf-8', 'replace')}")


def removed(subject: bytes, sid: bytes, user: str) -> Refusal:
    """It may not go on listening: its permissions are others now."""
    which = f"{quoted(subject)} (sid {quoted(sid)})"
    return Refusal(
        f"Permissions Violation for Subscription to {which}",
        f"Removed sub {which} for User {quoted(user)} - not authorized",
    )


def described(address: str, client: tuple[str, str, str], login: tuple[str, str]) -> str:
    """A client as the log names it.

    Args:
        address: of the connection, with its number.
        client: version, language and name that it gave itself.
        login: its account and user; no user: nobody in particular.
    """
    version, lang, name = client
    words = [word for word in (f"v{version}" if version else "", lang, name) if word]
    shown = [address] + ([quoted(":".join(words))] if words else [])
    account, user = login
    return " - ".join([*shown, quoted(f"{account}/user:{user}")] if user else shown)
