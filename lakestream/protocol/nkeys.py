"""Keys and credentials of NATS users.

Belongs here: seeds in their text form, the public key and the signature that a server asks for (Ed25519, RFC 8032), and
what a file with credentials holds. A client signs once a connection, so the arithmetic is plain Python (some ms); it
takes the same steps whatever the key is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import NamedTuple

_SEED, _USER = 18 << 3, 20 << 3
"""What seeds and users' public keys begin with: as base32 the letters S and U."""

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_BITS = 255
"""So many bits a scalar has at most."""

_block = re.compile(rb"-----BEGIN ([A-Z ]+)-----\s+([A-Za-z0-9_\-.=]+?)\s+-{3,}END [A-Z ]+-{3,}").findall

_Point = tuple[int, int, int, int]
"""A point of the curve in extended coordinates X, Y, Z, T: x = X/Z, y = Y/Z, xy = T/Z."""

_ZERO: _Point = (0, 1, 1, 0)
_BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_BASE_Y = 4 * pow(5, _P - 2, _P) % _P
_BASE: _Point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)


class BadKeyError(ValueError):
    """A seed or a file with credentials is wrong; the text says how."""


class KeyPair(NamedTuple):
    """A user's key. `public`: as servers know it (`U…`)."""

    public: str
    scalar: int
    prefix: bytes
    point: bytes

    def sign(self, message: bytes) -> bytes:
        """The signature, 64 bytes."""
        nonce = int.from_bytes(hashlib.sha512(self.prefix + message).digest(), "little") % _ORDER
        shown = _encoded(_times(nonce))
        challenge = int.from_bytes(hashlib.sha512(shown + self.point + message).digest(), "little") % _ORDER
        return shown + ((nonce + challenge * self.scalar) % _ORDER).to_bytes(32, "little")


class Credentials(NamedTuple):
    """What a file with credentials holds: who the user is, as its account says it, and the seed of its key."""

    jwt: str
    seed: str


def key_pair(seed: str) -> KeyPair:
    """The key of a user's seed (`SU…`). Raises BadKeyError."""
    text = seed.strip().encode("ascii", "replace")
    try:
        raw = base64.b32decode(text + b"=" * (-len(text) % 8))
    except binascii.Error:
        raise BadKeyError("a seed is base32 text that begins with SU") from None
    if len(raw) != 36 or binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little") != raw[-2:]:
        raise BadKeyError("a seed has 58 letters and digits; this one is damaged")
    if raw[0] & 0xF8 != _SEED or ((raw[0] & 7) << 5 | raw[1] >> 3) != _USER:
        raise BadKeyError("this is no user's seed: those begin with SU")
    digest = hashlib.sha512(raw[2:34]).digest()
    scalar = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | 1 << 254
    point = _encoded(_times(scalar))
    return KeyPair(_text(bytes([_USER]) + point), scalar, digest[32:], point)


def credentials(content: bytes) -> Credentials:
    """Of a file with credentials: the token of the user and the seed, each in a frame of dashes. Raises BadKeyError."""
    found = dict(_block(content))
    jwt, seed = found.get(b"NATS USER JWT"), found.get(b"USER NKEY SEED")
    if jwt is None or seed is None:
        raise BadKeyError("a file with credentials has a NATS USER JWT and a USER NKEY SEED")
    return Credentials(jwt.decode(), seed.decode())


def _text(raw: bytes) -> str:
    whole = raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(whole).rstrip(b"=").decode()


def _encoded(point: _Point) -> bytes:
    x, y, z, _ = point
    inverse = pow(z, _P - 2, _P)
    x, y = x * inverse % _P, y * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _sum(one: _Point, other: _Point) -> _Point:
    """The sum of two points, also of equal ones."""
    a = (one[1] - one[0]) * (other[1] - other[0]) % _P
    b = (one[1] + one[0]) * (other[1] + other[0]) % _P
    c = 2 * one[3] * other[3] * _D % _P
    d = 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(scalar: int) -> _Point:
    """The base point that many times (Montgomery's ladder: one sum and one doubling for every bit)."""
    pair = [_ZERO, _BASE]
    for bit in range(_BITS - 1, -1, -1):
        chosen = scalar >> bit & 1
        pair[1 - chosen] = _sum(pair[0], pair[1])
        pair[chosen] = _sum(pair[chosen], pair[chosen])
    return pair[0]
