"""Tests of packet ids on their way to a client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream_mqtt.window import IDS, Window

pytestmark = pytest.mark.unit


def test_a_redelivery_keeps_its_id() -> None:
    window = Window()
    first, second = window.send("c", 1, b"a1", 1, 9), window.send("c", 2, b"a2", 1, 9)
    assert (first, second) == (1, 2)
    assert window.send("c", 1, b"again", 1, 9) == first
    assert window.acknowledged(first) == b"again"
    assert window.acknowledged(first) == b""


def test_an_id_is_not_used_again_at_once() -> None:
    window = Window()
    for seq in range(1, 5):
        assert window.send("c", seq, b"a", 1, 9) == seq
        window.acknowledged(seq)


def test_no_more_than_the_limit_wait_for_the_client() -> None:
    window = Window()
    assert [window.send("c", seq, b"a", 1, 2) for seq in (1, 2, 3)] == [1, 2, 0]
    window.acknowledged(1)
    assert window.send("c", 3, b"a", 1, 2) == 3


def test_a_received_message_is_not_sent_again_before_its_release_is_complete() -> None:
    window = Window()
    packet_id = window.send("c", 1, b"a", 2, 9)
    assert window.received(packet_id) == b"a"
    assert window.received(packet_id) is None
    assert window.send("c", 1, b"again", 2, 9) == 0
    window.releasing(packet_id, b"r")
    assert window.unanswered() == [b"r"]
    assert window.completed(packet_id) == b"r"
    assert window.send("c", 1, b"again", 2, 9) == 2


def test_pubrec_for_qos_1_is_not_taken() -> None:
    window = Window()
    assert window.received(window.send("c", 1, b"a", 1, 9)) is None


def test_a_subscription_that_ends_frees_its_ids() -> None:
    window = Window()
    window.send("c", 1, b"a1", 1, 9)
    window.send("d", 1, b"a2", 1, 9)
    window.retain("f", 1, 9)
    window.forget("c")
    window.forget("/f")
    assert window.unanswered() == [b"a2"]


@given(st.lists(st.tuples(st.sampled_from(["send", "ack", "rec", "comp"]), st.integers(1, 6)), max_size=60))
def test_an_id_stands_for_one_message(steps: list[tuple[str, int]]) -> None:
    window, of = Window(), dict[int, int]()
    for what, number in steps:
        if what == "send" and (found := window.send("c", number, b"a", 2, 4)):
            assert of.setdefault(found, number) == number
            assert 1 <= found <= IDS
        elif what == "ack":
            window.acknowledged(number)
        elif what == "rec":
            window.received(number)
        elif what == "comp":
            window.completed(number)
        in_use = window.sent.keys() | window.released.keys()
        of = {found: seq for found, seq in of.items() if found in in_use}
        assert not window.sent.keys() & window.released.keys()
        assert len(window.sent) <= 4
