"""NATS keys: their text form, signatures, encryption, and credentials files.

Belongs here: public keys and seeds of users, accounts, operators, servers and clusters (Ed25519), curve keys (X25519)
and boxes encrypted to them, and the content of a credentials file.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

USER, ACCOUNT, OPERATOR, SERVER, CLUSTER, CURVE = 20 << 3, 0, 14 << 3, 13 << 3, 2 << 3, 23 << 3
"""Kinds of keys: the first byte of a public key. Its upper five bits are the letters U, A, O, N, C and X in base32."""

_SEED = 18 << 3
_NAMES = {USER: "user", ACCOUNT: "account", OPERATOR: "operator", SERVER: "server", CLUSTER: "cluster", CURVE: "curve"}
PUBLIC_KINDS = tuple(_NAMES)
_URL = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)
_LETTERS = re.compile(r"[A-Z2-7]{56}", re.ASCII)
_BOX_VERSION = b"xkv1"
_BOX_NONCE = 24

_block = re.compile(rb"-----BEGIN ([A-Z ]+)-----\s+([A-Za-z0-9_\-.=]+?)\s+-{3,}END [A-Z ]+-{3,}").findall


class BadKeyError(ValueError):
    """Raised for an invalid key, seed, box or credentials file; the text says why."""


class KeyPair(NamedTuple):
    """An Ed25519 key. `public`: in text form (`U…`)."""

    public: str
    private: Ed25519PrivateKey

    def sign(self, message: bytes) -> bytes:
        """Return the signature, 64 bytes."""
        return self.private.sign(message)


class CurveKey(NamedTuple):
    """An X25519 key, to which others encrypt. `public`: in text form (`X…`); `private`: 32 bytes."""

    public: str
    private: bytes

    def seal(self, message: bytes, to: str) -> bytes:
        """Encrypt to the owner of the public curve key `to`. Raises BadKeyError."""
        from nacl import bindings

        nonce = os.urandom(_BOX_NONCE)
        return _BOX_VERSION + nonce + bindings.crypto_box(message, nonce, decoded(to, CURVE), self.private)

    def open(self, box: bytes, sender: str) -> bytes:
        """Decrypt what the owner of the public curve key `sender` encrypted to this key. Raises BadKeyError."""
        from nacl import bindings, exceptions

        start = len(_BOX_VERSION) + _BOX_NONCE
        if len(box) < start or not box.startswith(_BOX_VERSION):
            raise BadKeyError("not an encrypted message: it does not begin with xkv1")
        try:
            return bindings.crypto_box_open(
                box[start:], box[len(_BOX_VERSION) : start], decoded(sender, CURVE), self.private
            )
        except (exceptions.CryptoError, exceptions.TypeError, exceptions.ValueError):
            raise BadKeyError("an encrypted message for another key, or a damaged one") from None


class CredentialsFile(NamedTuple):
    """The content of a credentials file: the user's JWT and the seed of its key."""

    jwt: str
    seed: str


# ---------------------------------------------------------------------- public keys


def decoded(public: str, *kinds: int) -> bytes:
    """Return the 32 bytes of a public key of one of these kinds. Raises BadKeyError."""
    if _LETTERS.fullmatch(public) is None:
        raise BadKeyError("a public key has 56 letters and digits")
    raw = base64.b32decode(public + "=" * (-len(public) % 8))
    if _checksum(raw[:-2]) != raw[-2:]:
        raise BadKeyError("this public key is damaged")
    if raw[0] not in kinds:
        raise BadKeyError(f"not a public key of {' or '.join(_NAMES[kind] for kind in kinds)}")
    return raw[1:-2]


def is_public(text: str, *kinds: int) -> bool:
    """Return True if the text is a public key of one of these kinds."""
    try:
        decoded(text, *kinds)
    except BadKeyError:
        return False
    return True


def verify(public: str, message: bytes, signature: bytes) -> bool:
    """Return True if the owner of the Ed25519 key `public` signed the message; False also for an invalid key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        raw = decoded(public, USER, ACCOUNT, OPERATOR, SERVER, CLUSTER)
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, message)
    except (BadKeyError, InvalidSignature, ValueError):
        return False
    return True


def signature_of(text: str) -> bytes | None:
    """Return the bytes of CONNECT's `sig`: base64url without padding, else standard base64 with padding; None: neither.

    The order is nats-server's. A text may be valid in both alphabets.
    """
    try:
        if _URL.fullmatch(text):
            return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return base64.b64decode(text, validate=True)
    except ValueError:  # also letters beyond ASCII
        return None


# ---------------------------------------------------------------------- keys


def key_pair(seed: str, kind: int = USER) -> KeyPair:
    """Return the key of a seed (`SU…` for a user). Raises BadKeyError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # most servers have no keys

    private = Ed25519PrivateKey.from_private_bytes(_seed(seed, kind))
    return KeyPair(_text(kind, private.public_key().public_bytes_raw()), private)


def new_key(kind: int) -> KeyPair:
    """Return a new Ed25519 key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    return KeyPair(_text(kind, private.public_key().public_bytes_raw()), private)


def new_seed(kind: int = USER) -> str:
    """Return the seed of a new Ed25519 key."""
    raw = bytes([_SEED | kind >> 5, (kind & 31) << 3]) + os.urandom(32)
    return base64.b32encode(raw + _checksum(raw)).rstrip(b"=").decode()


def new_curve_key() -> CurveKey:
    """Return a new X25519 key."""
    from nacl import bindings

    public, private = bindings.crypto_box_keypair()
    return CurveKey(_text(CURVE, public), private)


def credentials(content: bytes) -> CredentialsFile:
    """Return the JWT and the seed of a credentials file, each between lines of dashes. Raises BadKeyError."""
    found = dict(_block(content))
    jwt, seed = found.get(b"NATS USER JWT"), found.get(b"USER NKEY SEED")
    if jwt is None or seed is None:
        raise BadKeyError("a file with credentials has a NATS USER JWT and a USER NKEY SEED")
    return CredentialsFile(jwt.decode(), seed.decode())


def _seed(seed: str, kind: int) -> bytes:
    letters = f"S{base64.b32encode(bytes([kind])).decode()[0]}"
    text = seed.strip().encode("ascii", "replace")
    try:
        raw = base64.b32decode(text + b"=" * (-len(text) % 8))
    except binascii.Error:
        raise BadKeyError(f"a seed is base32 text that begins with {letters}") from None
    if len(raw) != 36 or _checksum(raw[:-2]) != raw[-2:]:
        raise BadKeyError("a seed has 58 letters and digits; this one is damaged")
    if raw[0] & 0xF8 != _SEED or ((raw[0] & 7) << 5 | raw[1] >> 3) != kind:
        raise BadKeyError(f"not a {_NAMES[kind]} seed: those begin with {letters}")
    return raw[2:34]


def _text(kind: int, public: bytes) -> str:
    raw = bytes([kind]) + public
    return base64.b32encode(raw + _checksum(raw)).rstrip(b"=").decode()


def _checksum(raw: bytes) -> bytes:
    """Return the CRC-16 (XMODEM), little endian."""
    return binascii.crc_hqx(raw, 0).to_bytes(2, "little")
