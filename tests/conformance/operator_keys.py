"""nats-server in operator mode: keys, JWTs, and a client that presents one.

Belongs here: nkeys and JWTs in NATS's formats, made anew for each test, and a configuration that trusts them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.wire import Wire

# Prefix bytes of nkeys, visible as their first base32 letters.
SEED, USER, ACCOUNT, OPERATOR = 18 << 3, 20 << 3, 0, 14 << 3


class Key:
    """Key of a user, an account or an operator."""

    def __init__(self, kind: int) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.public = _text(bytes([kind]) + self._key.public_key().public_bytes_raw())
        self.seed = _text(bytes([SEED | kind >> 5, (kind & 31) << 3]) + self._key.private_bytes_raw())

    def sign(self, message: str) -> str:
        """Sign a message; return the signature in the form of CONNECT."""
        return base64.urlsafe_b64encode(self._key.sign(message.encode())).decode().rstrip("=")

    def signed(self, subject: str, name: str, nats: dict[str, Any]) -> str:
        """Return a JWT about `subject`, signed with this key."""
        claims = {
            "iat": 1_700_000_000,
            "iss": self.public,
            "name": name,
            "sub": subject,
            "nats": {**nats, "version": 2},
        }
        claims["jti"] = base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).decode().rstrip("=")
        head = _part({"typ": "JWT", "alg": "ed25519-nkey"})
        body = f"{head}.{_part(claims)}"
        return f"{body}.{self.sign(body)}"


def _text(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _part(claims: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")


class Operator:
    """Operator with a system account and an account of one user, which may have streams and leaf nodes."""

    def __init__(self) -> None:
        operator, system, account, self.user = Key(OPERATOR), Key(ACCOUNT), Key(ACCOUNT), Key(USER)
        limits = {"subs": -1, "data": -1, "payload": -1}
        wide = {**limits, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
        stores = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
        trusted = operator.signed(operator.public, "O", {"type": "operator", "system_account": system.public})
        tokens = {
            system.public: operator.signed(system.public, "S", {"type": "account", "limits": wide}),
            account.public: operator.signed(account.public, "A", {"type": "account", "limits": {**wide, **stores}}),
        }
        self.token = account.signed(self.user.public, "U", {"type": "user", **limits, "pub": {}, "sub": {}})
        preloaded = ", ".join(f"{key}: {token}" for key, token in tokens.items())
        self.config = (
            f"operator: {trusted}\nresolver: MEMORY\nsystem_account: {system.public}\n"
            f"resolver_preload: {{ {preloaded} }}\n"
        )

    @property
    def credentials(self) -> str:
        """Return a file with the user's credentials, in the format of the NATS tools."""
        return (
            f"-----BEGIN NATS USER JWT-----\n{self.token}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\nNKEY Seed printed below is sensitive.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{self.user.seed}\n------END USER NKEY SEED------\n"
        )

    def client(self, address: tuple[str, int]) -> Wire:
        """Connect as the user to a server that trusts this operator."""
        wire = Wire(address, connect=None)
        told = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
        login = {"jwt": self.token, "sig": self.user.sign(wire.info["nonce"])}
        wire.send(b"CONNECT " + json.dumps({**told, **login}).encode() + b"\r\n")
        return wire
