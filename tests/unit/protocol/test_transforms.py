"""Tests of subject transforms as pure functions; conformance scenarios compare them with nats-server's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.protocol.subjects import matches
from lakestream.protocol.transforms import Transform, TransformError, check_destination, fnv1a, hashed

pytestmark = pytest.mark.unit

TOKEN = st.text("ab-", min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("source", "destination", "subject", "wanted"),
    [
        ("a.*.*", "b.$2.{{wildcard(1)}}", "a.x.y", "b.y.x"),
        ("a.>", "b.>", "a.x.y", "b.x.y"),
        ("", "b.>", "a.x", "b.a.x"),
        (">", ">", "a.x", "a.x"),
        ("a.*", "b.$x", "a.1", "b.$x"),
        ("a.*", "b.$" + "9" * 4000, "a.1", "b.$" + "9" * 4000),
        ("a.*", "b.{{partition(0,1)}}", "a.1", "b.0"),
        ("a.*", "b.{{split(1,-)}}", "a.--x--y-", "b..x.y"),
        ("a.*", "b.{{splitFromLeft(1,2)}}", "a.xyz", "b.xy.z"),
        ("a.*", "b.{{splitFromRight(1,9)}}", "a.xyz", "b.xyz"),
        ("a.*", "b.{{sliceFromLeft(1,2)}}", "a.vwxyz", "b.vw.xy.z"),
        ("a.*", "b.{{SliceFromRight(1,2)}}", "a.vwxyz", "b.v.wx.yz"),
        ("a.*", "b.{{left(1,2)}}.{{right(1,1)}}", "a.xyz", "b.xy.z"),
    ],
)
def test_what_becomes_of_a_subject(source: str, destination: str, subject: str, wanted: str) -> None:
    made = Transform(source.encode(), destination.encode()).apply(subject.encode())
    assert made == wanted.encode()


@pytest.mark.parametrize("subject", ["b.x", "a", "a.x.y", "a..", "a.*", "a.>"])
def test_what_the_source_does_not_select_is_not_changed(subject: str) -> None:
    assert Transform(b"a.*", b"c.$1").apply(subject.encode()) is None


def test_no_subject_outgrows_a_record() -> None:
    long = Transform(b"*", b".".join([b"$1"] * 1000))
    assert long.apply(b"x" * 60) is not None
    assert long.apply(b"x" * 70) is None
    with pytest.raises(TransformError):
        Transform(b"*", b".".join([b"$1"] * 2000))


def test_nothing_left_is_no_subject() -> None:
    assert Transform(b"*", b"{{split(1,-)}}").apply(b"--") is None


def test_the_hash_of_partitions_is_fnv_1a() -> None:
    # The test vectors of the hash's authors.
    assert [fnv1a(key) for key in (b"", b"a", b"foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]


@pytest.mark.parametrize("destination", ["b..c", "b.", ".b", "b.>.c", "b.x y", "b.{{foo(1)}}"])
def test_destinations_that_are_none(destination: str) -> None:
    with pytest.raises(TransformError):
        check_destination(destination.encode())


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("a.*", "b.$2"),
        ("a.*", "b.*"),
        ("a.*", "b.>"),
        ("a.>", "b"),
        ("a", "b.$1"),
        ("a.*", "b.{{left(1)}}"),
        ("a.*", "b.{{left(1,x)}}"),
        ("a.*", "b.{{partition(99999999999,1)}}"),
        ("a.*", "b.{{wildcard(" + "9" * 5000 + ")}}"),
    ],
)
def test_pairs_that_make_no_transform(source: str, destination: str) -> None:
    with pytest.raises(TransformError):
        Transform(source.encode(), destination.encode())


@given(st.lists(TOKEN, min_size=2, max_size=5), st.integers(-2, 8), st.sampled_from(["split", "slice"]))
def test_cutting_a_token_loses_nothing_of_it(tokens: list[str], size: int, way: str) -> None:
    rest = tokens[1:]
    subject = ".".join(tokens).encode()
    for side in ("FromLeft", "FromRight"):
        made = Transform(b"*.>", f"{{{{{way}{side}(1,{size})}}}}.>".encode()).apply(subject)
        assert made is not None
        assert made.replace(b".", b"") == subject.replace(b".", b"")
        assert made.endswith("".join(f".{each}" for each in rest).encode())
        assert matches(b">", made)


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_whatever_is_asked_for_a_transform_is_made_or_refused(
    source: bytes, destination: bytes, subject: bytes
) -> None:
    try:
        check_destination(destination)
        transform = Transform(source, destination)
    except TransformError:
        return
    transform.apply(subject)


@pytest.mark.parametrize(
    ("subject", "wanted"),
    [
        ("a.b", "a.b"),
        ("{{account-hash()}}.>", "NUmM6cRx.>"),
        ("{{ Account-Hash( ) }}.{{account-hash-import()}}", "NUmM6cRx.b2oh2L6w"),
        ("x{{account-hash()}}.{{wildcard(1)}}.{{}}", "x{{account-hash()}}.{{wildcard(1)}}.{{}}"),
        ("{{account-hash-leaf-remote()}}", "{{account-hash-leaf-remote()}}"),
    ],
)
def test_a_token_stands_for_the_hash_of_an_account(subject: str, wanted: str) -> None:
    assert hashed(subject, account="A", exporter="B", leaf_remote=None) == wanted


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("{{account-hash(1)}}", "too many arguments"),
        ("{{account-hash(,)}}", "too many arguments"),
        ("{{account-hash-import()}}", "not available in this context"),
        ("{{account-hash-leaf-remote()}}", "not available in this context"),
    ],
)
def test_a_token_of_an_account_that_is_not_known_is_refused(subject: str, why: str) -> None:
    with pytest.raises(TransformError, match=why):
        hashed(subject, account="A")
