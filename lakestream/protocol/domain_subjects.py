"""What the JetStream of a remote server is called here.

Belongs here: the subjects under which a domain that is reached through a link (`remote` in the configuration) is known
to clients and streams on this side. Who carries messages there and back is the server's; sessions with origins and the
listener for acks know these names and nothing else of it.
"""

from __future__ import annotations

LINK_QUEUE = b"_link_"
"""The queue group in which the nodes that have a link to a domain hear its requests. So that what one client sends
stays in order, the link of its node takes them, else that of the node with the lowest name."""

DELIVER_HEADER = b"Lakestream-Deliver"
"""Says with the reset of a consumer to which subject of `SESSIONS` here its messages shall come. Links take it off."""

SESSIONS = (b"$JS.M.", b"$JS.S.")
"""How the subjects begin to which mirrors and sources listen, each attempt to one of its own."""

MARK = b"@"
"""How the account in an ack subject begins whose consumer is on a remote server: no account is called so. No domain
contains it."""

_ACK = b"$JS.ACK."
V1_DOTS, V2_DOTS = 8, 10
"""In an ack subject: `$JS.ACK.<stream>.<consumer>` and five numbers; of version 2 `$JS.ACK.<domain>.<account>…`, and
more tokens may follow."""


def sign(prefix: bytes) -> bytes:
    """What a link listens to in `LINK_QUEUE` while it takes requests that begin so: a subject that can be watched."""
    return prefix + LINK_QUEUE


def ack_here(domain: bytes, subject: bytes) -> bytes:
    """An ack subject of a remote server as one of version 2, which every client understands."""
    if subject.count(b".") == V1_DOTS:
        return b"%b%b.%b.%b" % (_ACK, domain, MARK, subject[len(_ACK) :])
    _, _, theirs, account, rest = subject.split(b".", 4)
    return b"%b%b.%b%b%b%b.%b" % (_ACK, domain, MARK, theirs, MARK, account, rest)


def ack_there(subject: bytes) -> bytes:
    """What `ack_here` was made of; b"" where the subject is none of those."""
    if subject.count(b".") < V2_DOTS:
        return b""
    _, _, _, account, rest = subject.split(b".", 4)
    if account == MARK:
        return _ACK + rest
    theirs, mark, account = account[len(MARK) :].partition(MARK)
    return b"%b%b.%b.%b" % (_ACK, theirs, account, rest) if mark else b""
