"""Tests of SCRAM-SHA-256."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream_postgres.scram import BadScram, ScramServer

pytestmark = pytest.mark.unit

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
PROOF = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


def test_the_example_of_rfc_7677() -> None:
    server = ScramServer("pencil", SALT, NONCE)
    assert server.challenge(FIRST) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert server.verify(PROOF) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    ("first", "proof"),
    [
        (b"p=tls-server-end-point,,n=user,r=x", PROOF),
        (b"n,,n=user", PROOF),
        (b"n,,m=x,r=y", PROOF),
        (b"\xff", PROOF),
        (FIRST, PROOF.replace(b"p=d", b"p=e")),
        (FIRST, PROOF.replace(b"biws", b"eSws")),
        (FIRST, PROOF.replace(b"r=r", b"r=s")),
        (FIRST, PROOF[:-8]),
        (FIRST, PROOF + b"=="),
        (FIRST, b""),
    ],
)
def test_wrong_messages_are_rejected(first: bytes, proof: bytes) -> None:
    server = ScramServer("pencil", SALT, NONCE)
    with pytest.raises(BadScram):
        server.verify(proof) if server.challenge(first) else None


def test_another_password_is_rejected() -> None:
    server = ScramServer("crayon", SALT, NONCE)
    server.challenge(FIRST)
    with pytest.raises(BadScram, match="password is wrong"):
        server.verify(PROOF)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_rejected(first: bytes, proof: bytes) -> None:
    server = ScramServer("pencil", SALT, NONCE)
    with pytest.raises(BadScram):
        server.verify(proof) if server.challenge(first) else None
