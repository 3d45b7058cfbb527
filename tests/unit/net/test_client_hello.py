"""The curves that a TLS client offers, read from its first record."""

from __future__ import annotations

import random
import ssl

import pytest

from lakestream.net.client_hello import GROUPS, RECORD_HEAD, offered_groups, record_size
from tests.fuzzing import SEED, mutated


def _hello(curve: str = "", *, name: str = "localhost", most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    context = ssl.create_default_context()
    context.maximum_version = most
    if curve:
        context.set_ecdh_curve(curve)
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name).do_handshake()
    return sent.read()


@pytest.mark.parametrize("most", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("curve", "configured"),
    [("X25519", "X25519"), ("prime256v1", "CurveP256"), ("secp384r1", "CurveP384"), ("secp521r1", "CurveP521")],
)
def test_a_client_with_one_curve(curve: str, configured: str, most: ssl.TLSVersion) -> None:
    hello = _hello(curve, most=most)
    assert record_size(hello[:RECORD_HEAD]) == len(hello)
    assert offered_groups(hello) == {GROUPS[configured]}


def test_a_client_with_all_curves() -> None:
    assert {GROUPS["X25519"], GROUPS["CurveP256"], GROUPS["CurveP521"]} <= offered_groups(_hello())


def test_what_is_no_hello_offers_nothing() -> None:
    hello = _hello("X25519")
    assert not any(offered_groups(hello[:cut]) for cut in range(RECORD_HEAD + 60))
    assert not offered_groups(b"\x16\x03\x01\xff\xff" + b"\xff" * 70)


def test_garbage_is_read_without_an_error() -> None:
    rng, hello = random.Random(SEED), _hello()
    for _ in range(2_000):
        changed = mutated(rng, hello, [hello])
        assert record_size(changed[:RECORD_HEAD].ljust(RECORD_HEAD, b"\0")) <= RECORD_HEAD + 0xFFFF
        assert all(0 <= group <= 0xFFFF for group in offered_groups(changed))
