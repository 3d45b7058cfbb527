"""Keys and tokens as the tools of NATS make them: nkeys, curve keys, JWTs, creds files, and logins with them.

Belongs here: the encodings (ADR-14), the claims of operators, accounts, users, activations and auth callouts with the
defaults that `nsc` gives them, and encryption to a curve key. No server and no socket but for `login`.

Keys may be derived from a name. Such a key is the same in every run, and so is a token that it signs, so that a
configuration with them is the same text each time and a recording may name them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.poly1305 import Poly1305

from tests.wire import Wire

# Prefix bytes of nkeys; their upper five bits are the first letter in base32.
SEED, USER, ACCOUNT, OPERATOR, SERVER, CLUSTER, CURVE = 18 << 3, 20 << 3, 0, 14 << 3, 13 << 3, 2 << 3, 23 << 3

ISSUED_AT = 1_700_000_000
"""`iat` of every token that is not given another, so that tokens are the same in every run."""

UNLIMITED = -1
NO_LIMITS: dict[str, Any] = {"subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED}
ACCOUNT_LIMITS: dict[str, Any] = {
    **NO_LIMITS,
    "imports": UNLIMITED,
    "exports": UNLIMITED,
    "wildcards": True,
    "conn": UNLIMITED,
    "leaf": UNLIMITED,
}
"""Limits of an account as `nsc add account` writes them: none, and no JetStream."""

JETSTREAM: dict[str, Any] = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
"""Limits that give an account JetStream without limits."""


class Key:
    """An Ed25519 nkey of a user, an account, an operator, a server or a cluster.

    Args:
        kind: prefix byte.
        name: the key is derived from it; "" makes a random one.
    """

    def __init__(self, kind: int, name: str = "") -> None:
        raw = hashlib.sha256(f"nkey {kind} {name}".encode()).digest() if name else os.urandom(32)
        self._key = Ed25519PrivateKey.from_private_bytes(raw)
        self.kind = kind
        self.public = encode(kind, self._key.public_key().public_bytes_raw())
        self.seed = encode_seed(kind, raw)

    def sign_raw(self, message: str | bytes) -> bytes:
        """Return the 64 bytes of the signature."""
        return self._key.sign(message.encode() if isinstance(message, str) else message)

    def sign(self, message: str | bytes) -> str:
        """Return the signature as tokens and CONNECT have it: base64url without padding."""
        return _unpadded(self.sign_raw(message))

    def signed(self, subject: str, name: str, nats: Mapping[str, Any], **claims: Any) -> str:
        """Return a token about `subject` that this key signs.

        claims: replace or add registered claims (`exp`, `nbf`, `iat`, `aud`, `iss`); None leaves one out.
        """
        body = {"iat": ISSUED_AT, "iss": self.public, "name": name or None, "sub": subject, **claims}
        body["nats"] = {"version": 2, **nats}
        return self.token({key: value for key, value in body.items() if value is not None})

    def token(self, claims: Mapping[str, Any], head: Mapping[str, Any] | None = None, *, whole: bool = True) -> str:
        """Return a token with exactly these claims, and an id of their hash unless they have one.

        whole: False signs the claims alone, as version 1 of the tokens did.
        """
        digest = hashlib.new("sha512_256", json.dumps(claims).encode()).digest()
        claims = {"jti": base64.b32encode(digest).decode().rstrip("="), **claims}
        parts = f"{_part(head or {'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(claims)}"
        return f"{parts}.{self.sign(parts if whole else parts.partition('.')[2])}"


def user_key(name: str = "") -> Key:
    """Return the key of a user."""
    return Key(USER, name)


def account_key(name: str = "") -> Key:
    """Return the key of an account."""
    return Key(ACCOUNT, name)


def operator_key(name: str = "") -> Key:
    """Return the key of an operator."""
    return Key(OPERATOR, name)


def encode(kind: int, raw: bytes) -> str:
    """Return the text of a public key."""
    return _checked(bytes([kind]) + raw)


def encode_seed(kind: int, raw: bytes) -> str:
    """Return the text of a seed."""
    return _checked(bytes([SEED | kind >> 5, (kind & 31) << 3]) + raw)


def decode(text: str) -> bytes:
    """Return the 32 bytes of a public key.

    Raises:
        ValueError: the checksum is wrong.
    """
    raw = base64.b32decode(text + "=" * (-len(text) % 8))
    if binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little") != raw[-2:]:
        raise ValueError(f"{text} has a wrong checksum")
    return raw[1:-2]


def claims_of(token: str) -> dict[str, Any]:
    """Return the claims of a token; the signature is not verified."""
    body = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


def without(token: str, **claims: Any) -> str:
    """Return the token with other claims under its old signature, which is wrong now."""
    head, _, signature = token.split(".")
    return f"{head}.{_part({**claims_of(token), **claims})}.{signature}"


def _checked(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _part(claims: Mapping[str, Any]) -> str:
    return _unpadded(json.dumps(claims).encode())


def _unpadded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


# ---------------------------------------------------------------------- claims


def operator_jwt(key: Key, name: str = "O", *, signer: Key | None = None, claims: Any = None, **nats: Any) -> str:
    """Return an operator's token: `system_account`, `signing_keys`, `strict_signing_key_usage` … in `nats`."""
    return (signer or key).signed(key.public, name, {"type": "operator", **nats}, **(claims or {}))


def account_jwt(
    key: Key, name: str, signer: Key, *, limits: Mapping[str, Any] | None = None, claims: Any = None, **nats: Any
) -> str:
    """Return an account's token; `limits` go over `ACCOUNT_LIMITS`, None among them leaves one out."""
    every = {name: value for name, value in {**ACCOUNT_LIMITS, **(limits or {})}.items() if value is not None}
    fields = {"type": "account", "limits": every, "default_permissions": {"pub": {}, "sub": {}}, **nats}
    return signer.signed(key.public, name, fields, **(claims or {}))


def user_jwt(
    key: Key, name: str, signer: Key, *, issuer_account: str = "", scoped: bool = False, claims: Any = None, **nats: Any
) -> str:
    """Return a user's token.

    issuer_account: the account, when `signer` is one of its signing keys.
    scoped: leave out limits and permissions, which the scope of the signing key gives.
    """
    fields: dict[str, Any] = {"type": "user"}
    if not scoped:
        fields |= {"pub": {}, "sub": {}, **NO_LIMITS}
    if issuer_account:
        fields["issuer_account"] = issuer_account
    return signer.signed(key.public, name, {**fields, **nats}, **(claims or {}))


def activation_jwt(importer: str, signer: Key, subject: str, kind: str, *, claims: Any = None, **nats: Any) -> str:
    """Return the token with which an account lets `importer` import `subject`; kind is `stream` or `service`."""
    fields = {"type": "activation", "subject": subject, "kind": kind, **nats}
    return signer.signed(importer, subject, fields, **(claims or {}))


def callout_response(user: str, server: str, signer: Key, *, claims: Any = None, **nats: Any) -> str:
    """Return the answer to an auth callout: `jwt` or `error` in `nats`; `user` is the request's `user_nkey`."""
    fields = {"type": "authorization_response", **nats}
    return signer.signed(user, "", fields, **{"aud": server, **(claims or {})})


def scope(key: Key, role: str, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a signing key of an account that gives its users the limits and permissions of `template`."""
    fields = {**NO_LIMITS, "pub": {}, "sub": {}, **template}
    return {"kind": "user_scope", "key": key.public, "role": role, "template": fields}


def creds(token: str, key: Key) -> str:
    """Return the text of a creds file, as the tools of NATS write it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\nNKEY Seed printed below is sensitive.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
    )


def operator_config(operator: str, accounts: Mapping[str, str], system_account: str = "", more: str = "") -> str:
    """Return a configuration that trusts an operator's token and has accounts' tokens, by their keys, in memory."""
    preloaded = "\n".join(f"  {key}: {token}" for key, token in accounts.items())
    system = f"system_account: {system_account}\n" if system_account else ""
    return f"operator: {operator}\nresolver: MEMORY\n{system}resolver_preload {{\n{preloaded}\n}}\n{more}"


# ---------------------------------------------------------------------- logins


def proof(key: Key, nonce: str, token: str = "") -> dict[str, str]:
    """Return the fields of CONNECT with which the owner of `key` logs in: with a token, or as an nkey user."""
    return {"sig": key.sign(nonce), **({"jwt": token} if token else {"nkey": key.public})}


def login(address: tuple[str, int], key: Key, token: str = "", timeout: float = 5.0, **fields: Any) -> Wire:
    """Connect as the owner of a key, with a token or without; `fields` go over those of CONNECT."""
    wire = Wire(address, connect=None, timeout=timeout)
    wire.connect({**proof(key, wire.info.get("nonce", ""), token), **fields})
    return wire


class Operator:
    """An operator with a system account and an account of one user, which may have streams and leaf nodes."""

    def __init__(self) -> None:
        operator, system, account, self.user = operator_key(), account_key(), account_key(), user_key()
        tokens = {
            system.public: account_jwt(system, "S", operator),
            account.public: account_jwt(account, "A", operator, limits=JETSTREAM),
        }
        self._account = account
        self.token = self.user_token()
        self.config = operator_config(operator_jwt(operator, system_account=system.public), tokens, system.public)

    def user_token(self, **claims: Any) -> str:
        """Return a token of the user with further claims."""
        return user_jwt(self.user, "U", self._account, **claims)

    @property
    def credentials(self) -> str:
        """Return the text of the creds file of the user."""
        return creds(self.token, self.user)

    def client(self, address: tuple[str, int]) -> Wire:
        """Return the user as a client of a server that trusts this operator."""
        return login(address, self.user, self.token)


# ---------------------------------------------------------------------- encryption


class CurveKey:
    """An X25519 key (xkey), to which others encrypt; the box is NaCl's, in the envelope of nkeys."""

    VERSION = b"xkv1"
    NONCE_BYTES = 24

    def __init__(self, name: str = "") -> None:
        raw = hashlib.sha256(f"xkey {name}".encode()).digest() if name else os.urandom(32)
        self._key = X25519PrivateKey.from_private_bytes(raw)
        self.public = encode(CURVE, self._key.public_key().public_bytes_raw())
        self.seed = encode_seed(CURVE, raw)

    def _shared(self, other: str, nonce: bytes) -> tuple[bytes, bytes]:
        """Return the key of the stream cipher and its 8 bytes of nonce (XSalsa20)."""
        agreed = self._key.exchange(X25519PublicKey.from_public_bytes(decode(other)))
        return _hsalsa20(_hsalsa20(agreed, bytes(16)), nonce[:16]), nonce[16:]

    def seal(self, data: bytes, to: str) -> bytes:
        """Encrypt to the owner of the public key `to`."""
        nonce = os.urandom(self.NONCE_BYTES)
        stream = _salsa20(*self._shared(to, nonce), 32 + len(data))
        sealed = bytes(a ^ b for a, b in zip(data, stream[32:], strict=True))
        return self.VERSION + nonce + Poly1305.generate_tag(stream[:32], sealed) + sealed

    def open(self, data: bytes, sender: str) -> bytes:
        """Decrypt what the owner of the public key `sender` encrypted to this one.

        Raises:
            ValueError: it has another version.
            cryptography.exceptions.InvalidSignature: it was not encrypted so.
        """
        if data[:4] != self.VERSION:
            raise ValueError(f"unknown version {data[:4]!r}")
        nonce, tag, sealed = data[4:28], data[28:44], data[44:]
        stream = _salsa20(*self._shared(sender, nonce), 32 + len(sealed))
        Poly1305.verify_tag(stream[:32], sealed, tag)
        return bytes(a ^ b for a, b in zip(sealed, stream[32:], strict=True))


_SIGMA = struct.unpack("<4I", b"expand 32-byte k")
_QUARTERS: Sequence[tuple[int, int, int, int]] = (
    *((0, 4, 8, 12), (5, 9, 13, 1), (10, 14, 2, 6), (15, 3, 7, 11)),
    *((0, 1, 2, 3), (5, 6, 7, 4), (10, 11, 8, 9), (15, 12, 13, 14)),
)


def _rounds(state: list[int]) -> list[int]:
    """Return the 16 words after the 20 rounds of Salsa20."""
    x = list(state)
    for _ in range(10):
        for a, b, c, d in _QUARTERS:
            for target, left, right, turn in ((b, a, d, 7), (c, b, a, 9), (d, c, b, 13), (a, d, c, 18)):
                value = (x[left] + x[right]) & 0xFFFFFFFF
                x[target] ^= (value << turn | value >> (32 - turn)) & 0xFFFFFFFF
    return x


def _state(key: bytes, middle: bytes) -> list[int]:
    k, n = struct.unpack("<8I", key), struct.unpack("<4I", middle)
    return [_SIGMA[0], *k[:4], _SIGMA[1], *n, _SIGMA[2], *k[4:], _SIGMA[3]]


def _hsalsa20(key: bytes, nonce: bytes) -> bytes:
    x = _rounds(_state(key, nonce))
    return struct.pack("<8I", x[0], x[5], x[10], x[15], *x[6:10])


def _salsa20(key: bytes, nonce: bytes, length: int) -> bytes:
    """Return `length` bytes of the key stream."""
    blocks = []
    for number in range(-(-length // 64)):
        state = _state(key, nonce + struct.pack("<Q", number))
        blocks.append(struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(_rounds(state), state, strict=True))))
    return b"".join(blocks)[:length]
