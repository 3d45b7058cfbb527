"""Keys of tokens, signed texts, capabilities and times."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream_sharing import grants
from lakestream_sharing.errors import BadRequest, Forbidden
from lakestream_sharing.requests import Capabilities, capabilities, milliseconds
from lakestream_sharing.signing import FileUrl, Page, Refresh, Signer

RECORD = FileUrl("streams/ORDERS/größe.parquet", "ORDERS", "a" * 64, 1)


@given(st.text(st.characters(codec="utf-8", exclude_characters=".*> \t\r\n"), min_size=1, max_size=40))
def test_every_stream_has_a_key_of_its_own(stream: str) -> None:
    token_hash = grants.hash_of("x")
    key = grants.key(stream, token_hash)
    assert re.fullmatch(r"[A-Za-z0-9_=-]+\.[0-9a-f]{64}", key)
    assert grants.stream_of(key) == stream


def test_no_stream_has_the_key_of_all_streams() -> None:
    assert grants.key("*", "h") == "=2A.h"
    assert grants.key("=2A", "h") == "=3D2A.h"
    assert grants.stream_of("=2A.h") == grants.EVERY


def test_tokens_are_long_and_never_the_same() -> None:
    found = {grants.new_token() for _ in range(100)}
    assert len(found) == 100
    assert all(len(token) >= 43 for token in found)


def test_a_signed_text_is_opened_by_its_signer_alone() -> None:
    signer = Signer()
    text, signature = signer.sign(RECORD)
    assert signer.open(FileUrl, text, signature) == RECORD
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text + signature)
    for kind in (Page, Refresh):
        with pytest.raises(Forbidden):
            signer.open(kind, text, signature)
    with pytest.raises(Forbidden):
        Signer().open(FileUrl, text, signature)
    assert Signer(b"k" * 32).open(FileUrl, *Signer(b"k" * 32).sign(RECORD)) == RECORD
    with pytest.raises(ValueError, match="32 bytes"):
        Signer(b"short")
    assert "k" * 8 not in repr(Signer(b"k" * 32))


@given(st.text(max_size=60), st.text(max_size=60), st.integers(0, 60), st.sampled_from("abAB09-_="))
def test_other_texts_are_refused(text: str, signature: str, at: int, char: str) -> None:
    signer = Signer(b"k" * 32)
    with pytest.raises(Forbidden):
        signer.open(FileUrl, text, signature)
    with pytest.raises(BadRequest):
        signer.unseal(Page, text, "pageToken")
    good, mac = signer.sign(RECORD)
    changed = good[:at] + char + good[at + 1 :]
    if changed != good:
        with pytest.raises(Forbidden):
            signer.open(FileUrl, changed, mac)
    with pytest.raises(Forbidden):
        signer.open(FileUrl, good, mac[:at] + char + mac[at:])


def test_capabilities_of_clients() -> None:
    assert capabilities("") == Capabilities()
    assert capabilities("responseFormat=DELTA,avro; readerFeatures = deletionVectors,X;odd;=;") == Capabilities(
        ("delta",), frozenset(("deletionvectors", "x"))
    )
    assert capabilities("includeEndStreamAction=true").end_stream
    with pytest.raises(BadRequest):
        capabilities("responseformat=avro")


def test_times() -> None:
    assert milliseconds("1970-01-01T00:00:01.0019Z", "t") == 1001
    assert milliseconds("1970-01-01T01:00:00+01:00", "t") == 0
    assert milliseconds("1970-01-01 00:00:01", "t") == 1000
    for odd in ("", "now", "9999-99-99T00:00:00Z", "1", "2026-01-01T00:00:00+99:00"):
        with pytest.raises(BadRequest, match=r"^t has to be a time"):
            milliseconds(odd, "t")
