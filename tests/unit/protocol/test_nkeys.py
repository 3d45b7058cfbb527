"""Tests of seeds, public keys and signatures of users."""

from __future__ import annotations

import base64
import binascii

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.protocol.nkeys import BadKeyError, credentials, key_pair

pytestmark = pytest.mark.unit

USER, ACCOUNT = 20 << 3, 0


def seed_of(raw: bytes, kind: int = USER) -> str:
    body = bytes([18 << 3 | kind >> 5, (kind & 31) << 3]) + raw
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


@settings(max_examples=30)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=100))
def test_signatures_are_those_of_the_standard(raw: bytes, message: bytes) -> None:
    pair, theirs = key_pair(seed_of(raw)), Ed25519PrivateKey.from_private_bytes(raw)
    assert base64.b32decode(pair.public + "=" * (-len(pair.public) % 8))[1:33] == theirs.public_key().public_bytes_raw()
    assert pair.sign(message) == theirs.sign(message)
    assert pair.public.startswith("U")


@pytest.mark.parametrize(
    ("seed", "told"),
    [
        ("", "58 letters"),
        ("not base32!", "base32"),
        (seed_of(b"x" * 32)[:-1] + "A", "damaged"),
        (seed_of(b"x" * 32, ACCOUNT), "not a user seed"),
        (key_pair(seed_of(b"x" * 32)).public, "58 letters"),
    ],
)
def test_a_wrong_seed_is_refused(seed: str, told: str) -> None:
    with pytest.raises(BadKeyError, match=told):
        key_pair(seed)


def test_credentials_are_a_token_and_a_seed() -> None:
    text = (
        "-----BEGIN NATS USER JWT-----\r\neyJ0.eyJq-_.a\r\n------END NATS USER JWT------\r\n\r\n*** IMPORTANT ***\r\n"
        "-----BEGIN USER NKEY SEED-----\r\nSUABC\r\n------END USER NKEY SEED------\r\n"
    )
    assert credentials(text.encode()) == ("eyJ0.eyJq-_.a", "SUABC")
    with pytest.raises(BadKeyError):
        credentials(text[:100].encode())
