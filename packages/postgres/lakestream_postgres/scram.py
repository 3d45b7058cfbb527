"""SCRAM-SHA-256, the server's side.

Belongs here: the two messages each way. No I/O; random numbers are passed in.

Source: RFC 5802 and RFC 7677; PostgreSQL's documentation, "SASL Authentication": the user name is that of the startup.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata

MECHANISM = "SCRAM-SHA-256"
ITERATIONS = 4096


class BadScram(ValueError):
    """Raised for messages that are not SCRAM, or do not prove the password."""


class ScramServer:
    """One authentication.

    Args:
        password: of the user.
        salt: random, of 16 bytes.
        nonce: random, of printable letters without commas.
    """

    def __init__(self, password: str, salt: bytes, nonce: str) -> None:
        salted = hashlib.pbkdf2_hmac("sha256", _prepared(password).encode(), salt, ITERATIONS)
        self._stored = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
        self._server = _hmac(salted, b"Server Key")
        self._salt, self._nonce = salt, nonce
        self._header = self._first = self._challenge = ""

    def challenge(self, message: bytes) -> bytes:
        """Return the answer to the client's first message. Raises BadScram."""
        parts = _text(message).split(",", 2)
        if len(parts) != 3 or parts[0] not in ("n", "y"):
            raise BadScram("channel binding is not supported")
        self._header, self._first = f"{parts[0]},{parts[1]},", parts[2]
        nonce = _attributes(self._first).get("r", "")
        if not nonce or "m" in _attributes(self._first):
            raise BadScram("the first message has no nonce")
        self._nonce = nonce + self._nonce
        self._challenge = f"r={self._nonce},s={base64.b64encode(self._salt).decode()},i={ITERATIONS}"
        return self._challenge.encode()

    def verify(self, message: bytes) -> bytes:
        """Return the answer to the client's proof. Raises BadScram."""
        text = _text(message)
        bare, _, proof = text.rpartition(",p=")
        found = _attributes(bare)
        binding = base64.b64encode(self._header.encode()).decode()
        if found.get("r") != self._nonce or found.get("c") != binding:
            raise BadScram("the proof is not of this challenge")
        signed = f"{self._first},{self._challenge},{bare}".encode()
        try:
            given = base64.b64decode(proof, validate=True)
        except (binascii.Error, ValueError):
            raise BadScram("the proof is not base64") from None
        mask = _hmac(self._stored, signed)
        key = bytes(a ^ b for a, b in zip(given, mask, strict=False))
        if len(given) != len(mask) or not hmac.compare_digest(hashlib.sha256(key).digest(), self._stored):
            raise BadScram("the password is wrong")
        return b"v=" + base64.b64encode(_hmac(self._server, signed))


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise BadScram("the message is not UTF-8") from None


def _attributes(text: str) -> dict[str, str]:
    return {each[0]: each[2:] for each in text.split(",") if each[1:2] == "="}


def _prepared(password: str) -> str:
    """Return a password after SASLprep (RFC 4013); as it is where that refuses it, as Postgres' clients do."""
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in password if not stringprep.in_table_b1(char)
    )
    found = unicodedata.normalize("NFKC", mapped)
    prohibited = (
        stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4, stringprep.in_table_c5,
        stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8, stringprep.in_table_c9,
        stringprep.in_table_a1, stringprep.in_table_c12,
    )  # fmt: skip
    return password if not found or any(test(char) for char in found for test in prohibited) else found
