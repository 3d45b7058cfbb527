"""Tests of keys: seeds, public keys, signatures and boxes."""

from __future__ import annotations

import base64
import binascii

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.protocol import nkeys
from lakestream.protocol.nkeys import BadKeyError, credentials, key_pair
from tests import keys

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


@pytest.mark.parametrize("kind", [nkeys.USER, nkeys.ACCOUNT, nkeys.OPERATOR])
def test_a_new_seed_is_that_of_a_key(kind: int) -> None:
    seeds = {nkeys.new_seed(kind) for _ in range(2)}
    assert len({key_pair(seed, kind).public for seed in seeds}) == 2


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


KINDS = {keys.USER: "U", keys.ACCOUNT: "A", keys.OPERATOR: "O", keys.SERVER: "N", keys.CLUSTER: "C", keys.CURVE: "X"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_public_key_tells_its_kind(kind: int) -> None:
    key = keys.CurveKey("a").public if kind == keys.CURVE else keys.Key(kind, "a").public
    assert key.startswith(KINDS[kind])
    assert nkeys.decoded(key, kind) == keys.decode(key)
    for other in KINDS:
        assert nkeys.is_public(key, other) is (other == kind)
    for wrong in ("", key[:-1], key.lower(), key[:10] + ("A" if key[10] != "A" else "B") + key[11:], "é" * 56):
        assert not nkeys.is_public(wrong, kind)


@settings(max_examples=300)
@given(st.text(max_size=80))
def test_any_text_is_a_key_or_none(text: str) -> None:
    assert not nkeys.is_public(text, *KINDS)
    assert not nkeys.verify(text, b"", b"")
    nkeys.signature_of(text)


def test_a_signature_is_of_one_key_and_one_message() -> None:
    ann, bob = keys.user_key("ann"), keys.user_key("bob")
    signature = ann.sign_raw("nonce")
    assert nkeys.verify(ann.public, b"nonce", signature)
    assert not nkeys.verify(bob.public, b"nonce", signature)
    assert not nkeys.verify(ann.public, b"other", signature)
    assert not nkeys.verify(ann.public, b"nonce", signature[:-1])


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("-_-_", b"\xfb\xff\xbf"),
        ("+/+/", b"\xfb\xff\xbf"),
        ("-w", b"\xfb"),
        ("-w==", None),
        ("+w==", b"\xfb"),
        ("+w", None),
        ("", b""),
        ("!!!!", None),
        ("a", None),
    ],
)
def test_a_signature_is_raw_base64url_or_padded_base64(text: str, raw: bytes | None) -> None:
    assert nkeys.signature_of(text) == raw


def test_boxes_are_those_of_nkeys() -> None:
    mine, theirs = nkeys.new_curve_key(), keys.CurveKey("theirs")
    assert theirs.open(mine.seal(b"to them", theirs.public), mine.public) == b"to them"
    assert mine.open(theirs.seal(b"to me", mine.public), theirs.public) == b"to me"
    box = theirs.seal(b"to me", mine.public)
    for wrong in (b"", b"xkv1", box[:30], box[:-1], b"xkv2" + box[4:], box[:-1] + bytes([box[-1] ^ 1])):
        with pytest.raises(BadKeyError):
            mine.open(wrong, theirs.public)
    with pytest.raises(BadKeyError):
        mine.open(box, "XABC")
    with pytest.raises(BadKeyError):
        mine.seal(b"", keys.user_key("ann").public)


def test_a_new_key_signs() -> None:
    pair = nkeys.new_key(nkeys.SERVER)
    assert pair.public.startswith("N")
    assert nkeys.verify(pair.public, b"x", pair.sign(b"x"))
