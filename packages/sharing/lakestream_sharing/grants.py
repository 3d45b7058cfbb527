"""Tokens of recipients and what each may read.

Belongs here: the entries of the key-value bucket, their keys, and making tokens. A token is 256 random bits, shown
once; the bucket has its SHA-256. An entry covers one stream, and its key begins with that stream's name:

    <stream>.<hash>     {"recipient": "acme", "share": "acme", "history": false, "expires_ns": 1790000000000000000}

So NATS permissions decide who may share what: whoever may publish to `$KV.lakestream_sharing.ORDERS.*` issues and
revokes tokens for stream ORDERS. `*` as stream covers every stream of the account.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable

import msgspec

from lakestream.protocol.decoding import DECODE_ERRORS

BUCKET = "lakestream_sharing"
"""Name of the bucket, in the account whose streams are shared."""
STREAM = f"KV_{BUCKET}"
EVERY = "*"
"""In place of a stream's name: every stream of the account."""
PREFIX = "lks_"
"""Beginning of each token, by which scanners of sources find one that was leaked."""
MAX_STREAMS = 1_000
"""Streams that one token may name; more need `*`."""
MAX_LIFETIME_DAYS = 366
DEFAULT_LIFETIME_DAYS = 90
DAY_NS = 86_400_000_000_000
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of shares and recipients."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]")


class Grant(msgspec.Struct, frozen=True):
    """One entry. `history`: earlier versions and changes may be read too; `expires_ns`: end of the token's life."""

    recipient: str
    share: str
    expires_ns: int
    history: bool = False


class Shared(msgspec.Struct, frozen=True):
    """A stream that a token covers, or `*`."""

    stream: str
    grant: Grant


_GRANT = msgspec.json.Decoder(Grant)


def new_token() -> str:
    """Return a new token."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """Return the SHA-256 of a token, in hex. A token has 256 random bits, so nothing slower is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def key(stream: str, token_hash: str) -> str:
    """Return the key of an entry. Bytes that a key cannot have are spelled `=XX`."""
    spelled = "".join(
        char if _PLAIN.match(char) else "".join(f"={byte:02X}" for byte in char.encode()) for char in stream
    )
    return f"{spelled}.{token_hash}"


def stream_of(entry_key: str) -> str:
    """Return the stream that an entry covers."""
    spelled = entry_key.rpartition(".")[0].encode()
    return re.sub(rb"=([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), spelled).decode("utf-8", "replace")


def subject(entry_key: str) -> str:
    """Return the subject of a key, which may have wildcards."""
    return f"$KV.{BUCKET}.{entry_key}"


def decode(entry_key: str, value: bytes, stored_ns: int) -> Shared | None:
    """Return an entry; None for one that does not decode.

    Args:
        entry_key: the key.
        value: the value.
        stored_ns: when the server stored it; no token lives longer than MAX_LIFETIME_DAYS from then on.
    """
    try:
        grant = _GRANT.decode(value)
    except DECODE_ERRORS:
        return None
    if not NAME.fullmatch(grant.share):
        return None
    end = min(grant.expires_ns, stored_ns + MAX_LIFETIME_DAYS * DAY_NS)
    return Shared(stream_of(entry_key), msgspec.structs.replace(grant, expires_ns=end))


def valid(entries: Iterable[Shared], now_ns: int) -> list[Shared]:
    """Return the entries whose time is not over."""
    return [each for each in entries if each.grant.expires_ns > now_ns]


def bucket_config(replicas: int) -> dict[str, object]:
    """Return the configuration of the bucket's stream (ADR-8). It is not in the lake."""
    return {
        "name": STREAM,
        "subjects": [subject(">")],
        "description": "tokens of Delta Sharing: hashes, never the tokens",
        "max_msgs_per_subject": 1,
        "discard": "new",
        "storage": "file",
        "num_replicas": replicas,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "max_msg_size": 4096,
        "metadata": {"lakestream.lake": "off"},
    }
