"""NATS user keys and credentials files.

Belongs here: seeds in their text form, the public key and the signature that a server asks for (Ed25519), and the
content of a credentials file.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SEED, _USER = 18 << 3, 20 << 3
"""First bytes of seeds and of users' public keys: the base32 letters S and U."""

_block = re.compile(rb"-----BEGIN ([A-Z ]+)-----\s+([A-Za-z0-9_\-.=]+?)\s+-{3,}END [A-Z ]+-{3,}").findall


class BadKeyError(ValueError):
    """Raised for an invalid seed or credentials file; the text says why."""


class KeyPair(NamedTuple):
    """A user's key. `public`: in the form that servers know (`U…`)."""

    public: str
    private: Ed25519PrivateKey

    def sign(self, message: bytes) -> bytes:
        """Return the signature, 64 bytes."""
        return self.private.sign(message)


class Credentials(NamedTuple):
    """The content of a credentials file: the user's JWT and the seed of its key."""

    jwt: str
    seed: str


def key_pair(seed: str) -> KeyPair:
    """Return the key of a user's seed (`SU…`). Raises BadKeyError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # most servers have no keys

    text = seed.strip().encode("ascii", "replace")
    try:
        raw = base64.b32decode(text + b"=" * (-len(text) % 8))
    except binascii.Error:
        raise BadKeyError("a seed is base32 text that begins with SU") from None
    if len(raw) != 36 or binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little") != raw[-2:]:
        raise BadKeyError("a seed has 58 letters and digits; this one is damaged")
    if raw[0] & 0xF8 != _SEED or ((raw[0] & 7) << 5 | raw[1] >> 3) != _USER:
        raise BadKeyError("not a user seed: those begin with SU")
    private = Ed25519PrivateKey.from_private_bytes(raw[2:34])
    return KeyPair(_text(bytes([_USER]) + private.public_key().public_bytes_raw()), private)


def credentials(content: bytes) -> Credentials:
    """Return the JWT and the seed of a credentials file, each between lines of dashes. Raises BadKeyError."""
    found = dict(_block(content))
    jwt, seed = found.get(b"NATS USER JWT"), found.get(b"USER NKEY SEED")
    if jwt is None or seed is None:
        raise BadKeyError("a file with credentials has a NATS USER JWT and a USER NKEY SEED")
    return Credentials(jwt.decode(), seed.decode())


def _text(raw: bytes) -> str:
    whole = raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(whole).rstrip(b"=").decode()
