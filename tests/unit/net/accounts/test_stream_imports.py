"""Tests of messages imported from another account: receivers, subjects, and changed subscriptions."""

from __future__ import annotations

import itertools
import random

import pytest

from lakestream.config.account_options import AccountOptions, StreamExport, StreamImport
from lakestream.net.interest.subscription import Subscription
from lakestream.ports import ClientInfo, ListedMessages, Single, singly
from lakestream.protocol.messages import Messages
from lakestream.protocol.subjects import matches
from tests.unit.imports_world import Client, World

pytestmark = pytest.mark.unit


def world(*imports: StreamImport) -> World:
    return World(
        AccountOptions(name="A", exports=(StreamExport(subject=">"),)),
        AccountOptions(name="B", imports=imports, exports=(StreamExport(subject=">"),)),
        AccountOptions(name="C", imports=(StreamImport(account="B", subject=">", prefix="b"),)),
    )


@pytest.mark.parametrize(
    ("listens", "hears"),
    [
        (b"via.ev.k", True),
        (b"via.ev.*", True),
        (b"via.ev.>", True),
        (b"via.>", True),
        (b"*.ev.k", True),
        (b"*.*.k", True),
        (b">", True),
        (b"via.*", False),
        (b"ev.k", False),
        (b"via.ev.other", False),
        (b"via.ev", False),
        (b"*.other.k", False),
    ],
)
def test_a_subscription_hears_what_it_and_the_import_have_in_common(listens: bytes, hears: bool) -> None:
    here = world(StreamImport(account="A", subject="ev.>", prefix="via"))
    exporter, importer = here.client("A"), here.client("B")
    importer.subscribe(listens)
    exporter.publish(b"ev.k", b"1", b"answer.here")
    assert importer.taken() == ([(b"via.ev.k", b"answer.here", b"", b"1")] if hears else [])


def test_several_imports_of_one_message_each_deliver() -> None:
    here = world(
        StreamImport(account="A", subject="ev.>", prefix="via"),
        StreamImport(account="A", subject="ev.a.*", to="mapped.$1"),
        StreamImport(account="A", subject="ev.a.b"),
    )
    exporter, importer = here.client("A"), here.client("B")
    importer.subscribe(b">")
    exporter.publish(b"ev.a.b")
    assert sorted(importer.subjects) == [b"ev.a.b", b"mapped.b", b"via.ev.a.b"]


def test_what_is_imported_is_not_exported_again() -> None:
    here = world(StreamImport(account="A", subject="ev.>"))
    exporter, importer, third = here.client("A"), here.client("B"), here.client("C")
    third.subscribe(b"b.>")
    importer.subscribe(b"ev.>")
    exporter.publish(b"ev.1")
    assert importer.subjects == [b"ev.1"]
    assert third.taken() == []
    importer.publish(b"own")
    assert third.subjects == [b"b.own"]


def test_an_exporter_hears_nothing_of_its_importer() -> None:
    here = world(StreamImport(account="A", subject="ev.>"))
    exporter, importer = here.client("A"), here.client("B")
    exporter.subscribe(b">")
    assert not importer.publish(b"ev.1")
    assert exporter.taken() == []


def test_a_group_has_one_member_in_each_accounts_messages() -> None:
    here = world(StreamImport(account="A", subject="q"))
    exporter, members = here.client("A"), [here.client("B"), here.client("B")]
    for member in members:
        member.subscribe(b"q", b"workers")
    for _ in range(40):
        exporter.publish(b"q")
    counts = [len(member.taken()) for member in members]
    assert sum(counts) == 40
    assert all(counts)


def test_a_subscription_with_a_maximum_ends_in_both_accounts() -> None:
    here = world(StreamImport(account="A", subject="ev.>"))
    exporter, importer = here.client("A"), here.client("B")
    before = here.subscriptions("A"), here.subscriptions("B")
    importer.subscribe(b"ev.*", maximum=2)
    assert (here.subscriptions("A"), here.subscriptions("B")) == (before[0] + 1, before[1] + 1)
    exporter.publish(b"ev.1")
    importer.publish(b"ev.own")
    exporter.publish(b"ev.2")
    assert importer.subjects == [b"ev.1", b"ev.own"]
    assert (here.subscriptions("A"), here.subscriptions("B")) == before


def test_nothing_is_delivered_after_the_last_subscription() -> None:
    here = world(StreamImport(account="A", subject="ev.>"))
    exporter, importer = here.client("A"), here.client("B")
    sub = importer.subscribe(b">")
    assert exporter.publish(b"ev.1")
    here.hub("B").leave(sub)
    assert not exporter.publish(b"ev.1")


def test_a_batch_names_its_deliver_subject_in_the_importing_account_to_a_subscriber_through_a_wildcard() -> None:
    """Other servers are sent a batch with its deliver subject; the filter of a subscription does not tell it."""
    here = world(StreamImport(account="A", subject="dlv.>", prefix="via"))
    addressed: list[bytes] = []

    class Server(Client):
        def take(self, sub: Subscription, messages: Messages, begin: int, end: int, client: ClientInfo) -> int:
            addressed.append(messages.to)
            return end

    other = Server(here.hub("B"), ClientInfo(id=1, host="", account="B"))
    other.subscribe(b"via.>")
    assert here.hub("A").send(ListedMessages([Single(b"s.1", b"$JS.ACK.S.p", b"", b"x")], to=b"dlv.b"))
    assert addressed == [b"via.dlv.b"]


def test_a_consumers_deliveries_keep_the_subject_that_they_are_stored_with() -> None:
    """A consumer's deliveries keep the stored subject.

    Only messages to the deliver subject itself get the imported name.
    """
    here = world(StreamImport(account="A", subject="dlv.>", prefix="via"))
    importer = here.client("B")
    importer.subscribe(b"via.dlv.b")
    assert here.hub("A").bound(b"dlv.b")
    assert here.hub("A").send(ListedMessages([Single(b"s.1", b"$JS.ACK.S.p", b"", b"x")], to=b"dlv.b"))
    here.hub("A").send(Single(b"dlv.b", header=b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"))
    assert importer.subjects == [b"s.1", b"via.dlv.b"]


def test_a_consumer_sees_its_importing_subscriber_come_and_go() -> None:
    here = world(StreamImport(account="A", subject="dlv.>", prefix="via"))
    importer, seen = here.client("B"), list[bool]()
    here.hub("A").watch_interest(b"dlv.b", b"", seen.append)
    importer.subscribe(b"via.dlv.*")
    assert seen == []
    sub = importer.subscribe(b"via.dlv.b")
    here.hub("B").leave(sub)
    assert seen == [True, False]


def test_a_slow_importer_holds_the_exporters_deliveries() -> None:
    here = world(StreamImport(account="A", subject="dlv.>", prefix="via"))
    importer, told = here.client("B"), list[bool]()
    importer.subscribe(b"via.dlv.b")
    importer.congested = True
    assert not here.hub("A").writable(b"dlv.b")
    assert here.hub("A").slow_receiver(b"dlv.b") is not None
    here.hub("A").when_writable(b"dlv.b", lambda: told.append(True))
    importer.drain()
    for callback in here.clock.soon:
        callback()
    assert told == [True]
    assert here.hub("A").writable(b"dlv.b")


def test_the_servers_own_requests_are_not_imported() -> None:
    """The server's own requests are not imported.

    With an import of everything, one account's JetStream must not answer requests or take acks of another.
    """
    here = world(StreamImport(account="A", subject=">"))
    heard: list[bytes] = []
    for subject in (b"$JS.API.>", b"$JS.ACK.>", b"$SYS.REQ.>"):
        here.hub("B").subscribe(
            subject, singly(lambda subject, *rest: heard.append(subject)), local=subject != b"$JS.ACK.>"
        )
    for subject in (b"orders.*", b"$JS.EVENT.>"):  # of streams
        here.hub("B").subscribe(subject, singly(lambda subject, *rest: heard.append(subject)))
    exporter = here.client("A")
    for subject in (b"$JS.API.INFO", b"$JS.ACK.S.c.1", b"$SYS.REQ.X", b"orders.1", b"$JS.EVENT.ADVISORY.API"):
        exporter.publish(subject)
    assert heard == [b"orders.1", b"$JS.EVENT.ADVISORY.API"]


def test_other_nodes_of_the_cluster_have_their_own_shadows() -> None:
    here = world(StreamImport(account="A", subject=">"))
    sub = here.client("B").subscribe(b"x")
    here.hub("B").leave(sub)
    before = here.subscriptions("A")
    sub.remote = object()  # type: ignore[assignment]  # whoever it is
    here.hub("B").join(sub)
    assert here.subscriptions("A") == before


def test_a_reload_applies_to_existing_subscriptions() -> None:
    here = world()
    exporter, importer = here.client("A"), here.client("B")
    sub = importer.subscribe(b"ev.*")
    importer.subscribe(b"via.>")
    exporter.publish(b"ev.1")
    assert importer.taken() == []
    exports = AccountOptions(name="A", exports=(StreamExport(subject=">"),))
    here.configure(exports, AccountOptions(name="B", imports=(StreamImport(account="A", subject="ev.>"),)))
    exporter.publish(b"ev.1")
    assert importer.subjects == [b"ev.1"]
    here.configure(
        exports, AccountOptions(name="B", imports=(StreamImport(account="A", subject="ev.>", prefix="via"),))
    )
    exporter.publish(b"ev.1")
    assert importer.subjects == [b"via.ev.1"]
    here.hub("B").leave(sub)
    here.configure(exports, AccountOptions(name="B"))
    exporter.publish(b"ev.1")
    assert importer.taken() == []
    assert here.subscriptions("A") == 0


def test_a_reload_leaves_alone_what_stays() -> None:
    """A reload keeps unchanged subscriptions.

    A consumer of the exporter with a subscriber in this account does not lose its interest.
    """
    imports = (StreamImport(account="A", subject="dlv.>"), StreamImport(account="A", subject="old.>"))
    here = world(*imports)
    exporter, importer, seen = here.client("A"), here.client("B"), list[bool]()
    importer.subscribe(b"dlv.b")
    importer.subscribe(b">")
    here.hub("A").watch_interest(b"dlv.b", b"", seen.append)
    exports = AccountOptions(name="A", exports=(StreamExport(subject=">"),))
    here.configure(exports, AccountOptions(name="B", imports=(imports[0], StreamImport(account="A", subject="new.>"))))
    for subject in (b"dlv.b", b"old.1", b"new.1"):
        exporter.publish(subject)
    assert seen == []
    assert importer.subjects == [b"dlv.b", b"dlv.b", b"new.1"]


def some_imports(chance: random.Random) -> list[StreamImport]:
    imports = {}
    for _ in range(chance.randrange(1, 4)):
        theirs = ".".join(chance.choice(["a", "b", "*"]) for _ in range(chance.randrange(1, 3)))
        theirs += chance.choice(["", ".>"])
        imports[theirs] = StreamImport(account="A", subject=theirs, prefix=chance.choice(["", "a", "p.q"]))
    return list(imports.values())


def test_any_subscriptions_and_imports_deliver_what_the_definition_says() -> None:
    """Any subscriptions and imports deliver what the definition says.

    A subscription gets each message once for every import by whose name it selects it, also after a reload.
    """
    exports = AccountOptions(name="A", exports=(StreamExport(subject=">"),))
    for seed in range(100):
        chance = random.Random(seed)
        imports = some_imports(chance)
        here = World(exports, AccountOptions(name="B", imports=tuple(imports)))
        exporter = here.client("A")
        listeners: list[tuple[bytes, Client]] = []
        for _ in range(3):
            for _ in range(3):
                wanted = ".".join(chance.choice(["a", "b", "p", "q", "*"]) for _ in range(chance.randrange(1, 5)))
                wanted += chance.choice(["", ".>"])
                listener = here.client("B")
                sub = listener.subscribe(wanted.encode())
                if chance.random() < 0.2:
                    here.hub("B").leave(sub)
                    wanted = ""
                listeners.append((wanted.encode(), listener))
            for size in (1, 2, 3):
                for tokens in itertools.product([b"a", b"b"], repeat=size):
                    heard(exporter, imports, listeners, b".".join(tokens))
            imports = [one for one in imports if chance.random() < 0.6] + some_imports(chance)
            imports = list({one.subject: one for one in imports}.values())
            here.configure(exports, AccountOptions(name="B", imports=tuple(imports)))
        here.configure(exports, AccountOptions(name="B"))
        assert here.subscriptions("A") == 0, "no shadow is left"


def heard(exporter: Client, imports: list[StreamImport], listeners: list[tuple[bytes, Client]], subject: bytes) -> None:
    exporter.publish(subject)
    names = [
        (one.prefix + "." if one.prefix else "").encode() + subject
        for one in imports
        if matches(one.subject.encode(), subject)
    ]
    for pattern, listener in listeners:
        expected = sorted(name for name in names if pattern and matches(pattern, name))
        assert sorted(listener.subjects) == expected, (imports, pattern, subject)
