"""Subjects of a remote server's JetStream domain.

Belongs here: the names under which a domain behind a link (`remote` in the configuration) is known to clients and
streams here. Links carry the messages (net/remote); mirrors and the listener for acks use only these names.
"""

from __future__ import annotations

LINK_QUEUE = b"_link_"
"""Queue group of the nodes with a link to a domain. To keep the messages of one client in order, the link of its node
takes them, else that of the node with the lowest name."""

DELIVER_HEADER = b"Lakestream-Deliver"
"""Header of a consumer reset: the subject of `SESSIONS` to which its messages shall be delivered. Removed by links."""

SESSIONS = (b"$JS.M.", b"$JS.S.")
"""Prefixes of the subjects of mirror and source sessions; each attempt has one of its own."""

MARK = b"@"
"""Prefix of the account token in an ack subject of a consumer on a remote server: no account name begins with it, and
no domain contains it."""

_ACK = b"$JS.ACK."
V1_DOTS, V2_DOTS = 8, 10
"""Dots in an ack subject: `$JS.ACK.<stream>.<consumer>` and five numbers; version 2 is `$JS.ACK.<domain>.<account>…`
and may have more tokens."""


def sign(prefix: bytes) -> bytes:
    """Return the subject by which a link announces in `LINK_QUEUE` that it takes requests with this prefix."""
    return prefix + LINK_QUEUE


def ack_here(domain: bytes, subject: bytes) -> bytes:
    """Return an ack subject of a remote server in version 2, which every client understands."""
    if subject.count(b".") == V1_DOTS:
        return b"%b%b.%b.%b" % (_ACK, domain, MARK, subject[len(_ACK) :])
    _, _, theirs, account, rest = subject.split(b".", 4)
    return b"%b%b.%b%b%b%b.%b" % (_ACK, domain, MARK, theirs, MARK, account, rest)


def ack_there(subject: bytes) -> bytes:
    """Return the argument of `ack_here`; b"" for other subjects."""
    if subject.count(b".") < V2_DOTS:
        return b""
    _, _, _, account, rest = subject.split(b".", 4)
    if account == MARK:
        return _ACK + rest
    theirs, mark, account = account[len(MARK) :].partition(MARK)
    return b"%b%b.%b.%b" % (_ACK, theirs, account, rest) if mark else b""
