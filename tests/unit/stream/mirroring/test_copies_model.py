"""Tests of the model of copies: origins' messages that were removed before they were read."""

from __future__ import annotations

from tests.copied import Message, Origin

WHOLE = b"NATS/1.0\r\nX: y\r\nNats-Expected-Stream: S\r\n\r\n"
STRIPPED = b"NATS/1.0\r\nX: y\r\n\r\n"


def test_a_message_that_was_gone_before_it_was_read_is_known_with_its_headers_as_the_copy_keeps_them() -> None:
    origin = Origin("S")
    origin.publishes(b"a", WHOLE, b"1")
    origin.acked[5] = b"1"

    assert origin.has_been(5, Message(b"a", 7, STRIPPED, b"1"))
    assert not origin.has_been(5, Message(b"a", 7, WHOLE, b"1"))
    assert origin.has_been(5, Message(b"a", 7, WHOLE, b"1"), whole=True)
    assert not origin.has_been(5, Message(b"a", 7, STRIPPED, b"1"), whole=True)
    assert not origin.has_been(5, Message(b"b", 7, STRIPPED, b"1"))
    assert not origin.has_been(5, Message(b"a", 7, STRIPPED, b"2"))
    assert not origin.has_been(6, Message(b"a", 7, WHOLE, b"2"), whole=True)


def test_a_message_that_was_read_is_what_was_read() -> None:
    origin = Origin("S")
    origin.publishes(b"a", WHOLE, b"1")
    origin.history[5] = Message(b"a", 7, WHOLE, b"1")

    assert origin.has_been(5, Message(b"a", 7, STRIPPED, b"1"))
    assert origin.has_been(5, Message(b"a", 7, WHOLE, b"1"), whole=True)
    assert not origin.has_been(5, Message(b"a", 8, STRIPPED, b"1"))
