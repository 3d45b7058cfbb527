"""Tests of requests on their way to the leader that answers them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest

from lakestream.meta import requests as cluster_requests
from lakestream.meta.requests import DECIDED_HOLD_NS, HOLD_NS, MAX_HOPS, Forwarded, Leaders, Requests
from lakestream.ports import Single
from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.protocol.api.request import Request, Where
from tests.unit.cluster_world import CLIENT, Net

pytestmark = pytest.mark.unit

INFO = "STREAM.INFO.*"


class Member:
    """Requests of one node; `leads` returns the node that this one believes to lead."""

    alone = False
    accounts: Any = None

    def __init__(self, net: Net, name: str) -> None:
        self.net, self.me, self.strict, self.account = net, name, True, "$G"
        self.leads = ""
        self.handled: list[Request] = []
        self.answers: list[bytes] = []
        self.requests = Requests(self, net.nodes[name], net.clock)
        self.requests.accept("$G", INFO, self._came)

    def answerer(self, where: Where, account: str, tokens: Sequence[str]) -> str:
        return self.leads if self.net.nodes[self.me].alive(self.leads) else ""

    def unavailable(self, where: Where, account: str, tokens: Sequence[str]) -> ApiError:
        return api_error(10008)

    def answered(self, request: Request, body: bytes, failed: bool) -> None:
        self.answers.append(body)

    def crashed(self, request: Request, error: Exception) -> ApiError:
        raise error

    def ask(self, stage: str = "") -> Request:
        request = Request(self, "stream_info_response", {}, ["S"], b"_R", b"", b"{}", CLIENT, INFO, 0, stage)
        self.requests.dispatch(request, Where.STREAM, lambda: self.handled.append(request))
        return request

    def _came(self, came: Forwarded) -> None:
        request = Request(
            self,
            "stream_info_response",
            {},
            came.tokens,
            came.reply,
            came.header,
            came.body,
            came.client,
            came.pattern,
            came.hops,
            came.stage,
            came.origin,
        )
        self.requests.dispatch(request, Where.STREAM, lambda: self.handled.append(request))


def _three() -> tuple[Net, Member, Member, Member]:
    net = Net("a", "b", "c")
    return net, Member(net, "a"), Member(net, "b"), Member(net, "c")


def test_the_leader_answers_its_own_clients() -> None:
    _, a, *_ = _three()
    a.leads = "a"
    a.ask()
    assert len(a.handled) == 1


def test_a_request_goes_to_the_leader_whole() -> None:
    net, a, b, _ = _three()
    a.leads = b.leads = "b"
    a.ask("created")
    net.run()
    assert not a.handled
    (came,) = b.handled
    assert (came.tokens, came.reply, came.body, came.client) == (["S"], b"_R", b"{}", CLIENT)
    assert (came.hops, came.stage, came.origin) == (1, "created", "a")


def test_a_request_follows_leaders_that_have_changed() -> None:
    net, a, b, c = _three()
    a.leads, b.leads, c.leads = "b", "c", "c"
    a.ask()
    net.run()
    assert [request.hops for request in c.handled] == [2]


def test_nodes_that_disagree_do_not_pass_a_request_on_for_ever() -> None:
    net, a, b, _ = _three()
    a.leads, b.leads = "b", "a"
    a.ask()
    net.run()
    net.clock.advance(HOLD_NS)
    assert sum(b"10008" in answer for answer in a.answers + b.answers) == 1


def test_what_is_decided_is_answered_without_a_leader_and_never_refused() -> None:
    """A burst of creates keeps leaders waiting: each stream exists, whenever its leader is known."""
    net, a, *_ = _three()
    decided: list[Request] = []
    for _ in range(2):  # the second one finds that a leader was missing for long already
        request = Request(a, "stream_create_response", {}, ["S"], b"_R", b"", b"{}", CLIENT, INFO, 0, "created")
        a.requests.dispatch(request, Where.STREAM, lambda: None, functools.partial(decided.append, request))
        net.clock.advance(DECIDED_HOLD_NS - 1)
        assert not decided
        net.clock.advance(1)
        assert decided.pop() is request
    assert not a.answers


def test_a_request_waits_for_a_leader() -> None:
    net, a, b, _ = _three()
    b.leads = "b"
    a.ask()
    net.run()
    assert not a.answers
    a.leads = "b"
    a.requests.changed()
    net.run()
    assert len(b.handled) == 1
    net.clock.advance(2 * HOLD_NS)
    assert not a.answers


def test_a_request_without_a_leader_times_out_and_later_ones_fail_at_once() -> None:
    net, a, *_ = _three()
    a.ask()
    net.clock.advance(HOLD_NS - 1)
    assert not a.answers
    net.clock.advance(1)
    assert len(a.answers) == 1
    a.ask()
    assert len(a.answers) == 2
    a.leads = "a"
    a.requests.changed()
    a.leads = ""
    a.ask()  # the leader in between restarts the timeout
    assert len(a.answers) == 2


def test_a_leader_that_can_not_be_reached_is_none() -> None:
    net, a, b, _ = _three()
    a.leads = b.leads = "b"
    net.cut("b")
    a.ask()
    net.run()
    assert not b.handled
    net.heal("b")
    a.requests.changed()
    net.run()
    assert len(b.handled) == 1


def test_only_so_many_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_requests, "MAX_HELD", 2)
    _, a, *_ = _three()
    for _ in range(3):
        a.ask()
    assert len(a.answers) == 1


def test_hops_are_few() -> None:
    assert MAX_HOPS < 10


def _leaders(net: Net, name: str) -> Leaders:
    return Leaders(net.nodes[name])


def test_every_node_learns_the_leader() -> None:
    net = Net("a", "b", "c")
    known = {name: _leaders(net, name) for name in "abc"}
    changed: list[str] = []
    known["c"].on_changed = changed.append
    known["a"].lead("u1", 3)
    net.run()
    assert {leaders.of("u1") for leaders in known.values()} == {"a"}
    assert changed == ["u1"]


def test_an_older_term_does_not_count() -> None:
    net = Net("a", "b", "c")
    known = _leaders(net, "c")
    known.note("u1", 5, "a")
    known.note("u1", 4, "b")
    known.note("u1", 6, "")
    assert known.of("u1") == "a"


def test_a_leader_that_is_gone_is_none_and_tells_again_when_it_is_back() -> None:
    net = Net("a", "b")
    a, b = _leaders(net, "a"), _leaders(net, "b")
    a.lead("u1", 1)
    net.run()
    net.cut("a")
    assert b.of("u1") == ""
    a.lead("u2", 1)
    net.run()
    net.heal("a")
    net.run()
    assert (b.of("u1"), b.of("u2")) == ("a", "a")


def test_a_stream_that_is_gone_has_no_leader() -> None:
    net = Net("a", "b")
    a = _leaders(net, "a")
    a.lead("u1", 1)
    a.forget("u1")
    assert a.of("u1") == ""


def test_an_answer_goes_to_the_clients_node_regardless_of_known_interest() -> None:
    net, a, b, c = _three()
    got: list[tuple[str, bytes, bytes, bytes]] = []
    a.requests.on_answer = lambda *answer: got.append(answer)
    a.leads, b.leads, c.leads = "b", "c", "c"
    a.ask()
    net.run()
    (request,) = c.handled
    assert c.requests.answer(request.origin, "$G", request.reply, b"{}")
    assert c.requests.answer(request.origin, "A", request.reply, b"{}", b"NATS/1.0\r\nA: b\r\n\r\n")
    net.run()
    assert got == [("$G", Single(b"_R", payload=b"{}")), ("A", Single(b"_R", b"", b"NATS/1.0\r\nA: b\r\n\r\n", b"{}"))]


def test_an_answer_to_a_client_of_this_node_needs_no_other() -> None:
    _, a, *_ = _three()
    assert not a.requests.answer("", "$G", b"_R", b"{}")
    assert not a.requests.answer("a", "$G", b"_R", b"{}")
