"""Tests of permissions and mappings in a cluster of real processes.

`--against real` tries these tests on nats-servers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.nodes import Cluster, until
from tests.cluster.test_routing import connect_urls
from tests.servers import Kind
from tests.wire import Frame, Wire

pytestmark = pytest.mark.cluster

ACCOUNTS = """\
  A {
    users: [
      {user: a, password: p}
      {user: deny, password: p, permissions: {subscribe: {deny: "s.no"}}}
      {user: answer, password: p, permissions: {subscribe: "ask.>", allow_responses: true}}
    ]
    mappings: { "from.*": "to.$1" }
  }
"""


@pytest.fixture(scope="module")
def routes(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield three connected nodes without JetStream."""
    cluster = Cluster(kind, tmp_path_factory.mktemp("rules"), 3, accounts=ACCOUNTS, user=("a", "A"))
    for node in cluster.nodes:
        node.jetstream = False
        node.start()
    until(lambda: all(len(connect_urls(cluster, node)) == 3 for node in cluster.nodes), "three connected nodes")
    yield cluster
    cluster.kill()


def _client(cluster: Cluster, node: int, user: str) -> Wire:
    wire = cluster.wire(cluster.nodes[node], user=user)
    wire.ping()
    return wire


def _heard_by(wire: Wire, listener: Wire, subject: str, sid: str) -> None:
    """Wait until `listener`, on another node, receives what `wire` publishes to `subject`."""

    def heard() -> bool:
        wire.publish(subject, b"try")
        wire.ping()
        return any(frame.sid == sid for frame in listener.ping())

    until(heard, f"{subject} to be heard on the other node")


def _real(frames: list[Frame]) -> list[str]:
    """Return the subjects of the frames, without the probes of `_heard_by`, which may arrive late."""
    return [frame.subject for frame in frames if frame.data != b"try"]


def test_what_is_denied_is_not_delivered_from_another_node(routes: Cluster) -> None:
    listener, sender = _client(routes, 1, "deny"), _client(routes, 0, "a")
    sid = listener.subscribe("s.*")
    _heard_by(sender, listener, "s.yes", sid)
    for subject in ("s.no", "s.last"):
        sender.publish(subject)
    assert listener.message("s.last")
    assert not [frame for frame in listener.ping() if frame.subject == "s.no"]


def test_a_member_on_another_node_gets_what_is_denied_to_one_here(routes: Cluster) -> None:
    denied, sender, member = _client(routes, 0, "deny"), _client(routes, 0, "a"), _client(routes, 1, "a")
    sid = member.subscribe("s.*", "group")
    _heard_by(sender, member, "s.yes", sid)
    denied.subscribe("s.*", "group")
    denied.ping()
    for _ in range(30):
        sender.publish("s.no")
    sender.ping()
    for _ in range(30):
        assert member.message("s.no").sid == sid
    assert not _real(denied.ping())


def test_other_nodes_hear_the_mapped_subject(routes: Cluster) -> None:
    listener, sender = _client(routes, 1, "a"), _client(routes, 0, "a")
    sid = listener.subscribe("to.>")
    listener.subscribe("from.>")
    _heard_by(sender, listener, "to.try", sid)
    sender.publish("from.x")
    assert listener.message("to.x").sid == sid
    assert _real(listener.ping()) == []


def test_answers_to_a_request_from_another_node(routes: Cluster) -> None:
    service, asker = _client(routes, 1, "answer"), _client(routes, 0, "a")
    sid = service.subscribe("ask.it")
    _heard_by(asker, service, "ask.it", sid)
    reply = asker.new_reply()
    asker.publish("ask.it", b"?", reply)
    request = service.next(lambda frame: frame.data == b"?")
    service.publish(request.reply, b"!")
    assert asker.message(reply).data == b"!"
    service.publish(request.reply, b"!!")
    assert [frame.verb for frame in service.ping() if frame.data != b"try"] == ["-ERR"]
