"""Signed texts: URLs of files of a lake in a directory, and tokens that continue a list or renew URLs.

Belongs here: HMAC-SHA-256 over what a text says and when it ends. The key is 32 random bytes of the process, or the
content of a file that several processes share. It is in no log line and in no error.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Any, TypeVar, cast

import msgspec

from lakestream.protocol.decoding import DECODE_ERRORS
from lakestream_sharing.errors import BadRequest, Forbidden

KEY_BYTES = 32
MAX_TEXT = 8192
"""Characters of a signed text."""
T = TypeVar("T")


class FileUrl(msgspec.Struct, frozen=True, array_like=True):
    """A URL's content: a file by its path below the lake's root, for the holder of a token until a time.

    Attributes:
        stream: of the table whose version has the file.
        token: the hash of the token with which the URL was requested; a URL ends with its token.
    """

    path: str
    stream: str
    token: str
    expires_ns: int


class Page(msgspec.Struct, frozen=True, array_like=True):
    """The item after which a list goes on. `what`: the list."""

    what: str
    after: str


class Refresh(msgspec.Struct, frozen=True, array_like=True):
    """The version whose URLs a client may have renewed, of a table, for the holder of a token until a time."""

    table_id: str
    version: int
    token: str
    expires_ns: int


_DECODERS: dict[type, msgspec.msgpack.Decoder[Any]] = {
    FileUrl: msgspec.msgpack.Decoder(FileUrl),
    Page: msgspec.msgpack.Decoder(Page),
    Refresh: msgspec.msgpack.Decoder(Refresh),
}


class Signer:
    """Signs and verifies.

    Args:
        key: at least KEY_BYTES; by default random, so that texts end with the process.
    """

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and len(key) < KEY_BYTES:
            raise ValueError(f"the key has to have {KEY_BYTES} bytes or more")
        self._key = key or secrets.token_bytes(KEY_BYTES)

    def __repr__(self) -> str:
        return "Signer()"

    def sign(self, record: msgspec.Struct) -> tuple[str, str]:
        """Return a record as text, and its signature. Both have only characters that a URL passes on as they are."""
        body = msgspec.msgpack.encode(record)
        return _text(body), _text(self._mac(type(record), body))

    def open(self, kind: type[T], text: str, signature: str) -> T:
        """Return a record that was signed here. Raises Forbidden."""
        try:
            if max(len(text), len(signature)) > MAX_TEXT:
                raise ValueError
            body = _bytes(text)
            # Compared as text: several texts decode to the same bytes, and only one was given out.
            if _text(body) != text or not hmac.compare_digest(_text(self._mac(kind, body)), signature):
                raise ValueError
            return cast(T, _DECODERS[kind].decode(body))
        except (ValueError, TypeError, *DECODE_ERRORS):
            raise Forbidden("the signature is not valid") from None

    def seal(self, record: msgspec.Struct) -> str:
        """Return text and signature as one text."""
        return ".".join(self.sign(record))

    def unseal(self, kind: type[T], sealed: str, name: str) -> T:
        """Return a record from `seal`. Raises BadRequest, with the parameter's name."""
        text, _, signature = sealed.partition(".")
        try:
            return self.open(kind, text, signature)
        except Forbidden:
            raise BadRequest(f"{name} was not issued by this server") from None

    def _mac(self, kind: type, body: bytes) -> bytes:
        return hmac.digest(self._key, kind.__name__.encode() + b"\0" + body, hashlib.sha256)


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError from None
