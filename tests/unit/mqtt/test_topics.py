"""Tests of topics as subjects. What nats-server makes of them is in tests/conformance/test_mqtt.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.protocol.subjects import valid_literal
from lakestream_mqtt.topics import BadTopic, is_kept_from, level_above, subject_of, topic_of

pytestmark = pytest.mark.unit

PAIRS = [
    (b"a", b"a"),
    (b"a/b", b"a.b"),
    (b"/", b"/./"),
    (b"/a", b"/.a"),
    (b"a/", b"a./"),
    (b"a//b", b"a./.b"),
    (b"//", b"/././"),
    (b"a.b", b"a//b"),
    (b".", b"//"),
    (b"$SYS/x", b"$SYS.x"),
    ("é/ü".encode(), "é.ü".encode()),
]


@pytest.mark.parametrize(("topic", "subject"), PAIRS)
def test_a_topic_has_a_subject(topic: bytes, subject: bytes) -> None:
    assert subject_of(topic) == subject
    assert topic_of(subject) == topic


@pytest.mark.parametrize("topic", [b"a b", b"a\tb", b"a\nb", b"a\x7f", b"a/+", b"#"])
def test_a_topic_without_subject(topic: bytes) -> None:
    with pytest.raises(BadTopic):
        subject_of(topic)


@pytest.mark.parametrize(
    ("topic", "subject"),
    [(b"+", b"*"), (b"#", b">"), (b"+/a/#", b"*.a.>"), (b"/#", b"/.>"), (b"a/+/", b"a.*./"), (b"a.b/+", b"a//b.*")],
)
def test_a_filter_has_wildcards(topic: bytes, subject: bytes) -> None:
    assert subject_of(topic, wildcards=True) == subject


@pytest.mark.parametrize("topic", [b"a+", b"a#", b"a/b+/c", b"#/a", b"##", b"a/#/b"])
def test_a_wildcard_is_a_whole_level(topic: bytes) -> None:
    with pytest.raises(BadTopic):
        subject_of(topic, wildcards=True)


@given(st.text(st.sampled_from("ab./$é"), min_size=1, max_size=12))
def test_every_topic_comes_back(topic: str) -> None:
    subject = subject_of(topic.encode())
    assert topic_of(subject) == topic.encode()
    assert valid_literal(subject)


def test_a_filter_of_all_below_has_a_level_above() -> None:
    assert level_above(b"a.b.>") == b"a.b"
    assert level_above(b">") == level_above(b"a") == b""


def test_filters_that_begin_with_a_wildcard_do_not_match_dollar_topics() -> None:
    for subject in (b">", b"*", b"*.x"):
        assert is_kept_from(subject, b"$SYS.x")
        assert not is_kept_from(subject, b"a.x")
    assert not is_kept_from(b"$SYS.>", b"$SYS.x")
