"""Tests of features: an added feature, the orders of publish rules, and the cost of plain messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lakestream.protocol.api.errors import api_error
from lakestream.protocol.publishes import NOTHING_APART, Publishes, run_of
from lakestream.stream.assembly import FEATURES
from lakestream.stream.core import feature
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Effect, EffectKey, Given
from lakestream.stream.core.feature import Feature, Stored
from lakestream.stream.core.limits import Removed
from lakestream.stream.core.operations import ConsumerProgress, DeleteMessage, Near, Operation, Purge, UpdateStream
from lakestream.stream.core.publish import IncomingMessage, PublishRule, View
from lakestream.stream.features.expected import Expected
from lakestream.stream.info import info_shown
from tests.unit.stream_world import World

COLOUR: EffectKey[bytes] = EffectKey("colour")


def _only_colours(view: View, message: IncomingMessage, given: Given) -> None:
    if given[b"Nats-Colour"] not in (b"red", b"blue"):
        raise api_error(10111, err="no such colour")


def _read(effect: Effect, header: bytes, given: Given, config: StreamConfig) -> None:
    COLOUR.put(effect, given[b"Nats-Colour"])


class Colours(Feature):
    """Feature for tests: counts the stored messages with each colour, and records its hooks."""

    rules = (PublishRule(_only_colours, frozenset({b"Nats-Colour"}), single=25, replicated=25),)
    effects = ((b"Nats-Colour", _read),)

    def __init__(self) -> None:
        self.called: list[str] = []
        self.counts: dict[bytes, int] = {}

    def configure(self, config: StreamConfig) -> None:
        self.called.append(f"configure {config.max_msgs}")

    def arrived(self, message: IncomingMessage) -> None:
        self.called.append("arrived")

    def taken(self, effect: Effect) -> None:
        self.called.append(f"taken {effect.seq}")

    def stored(self, stored: Stored) -> None:
        for effect in stored.effects:
            colour = COLOUR.of(effect)
            if colour is not None:
                self.counts[colour] = self.counts.get(colour, 0) + 1

    def removed(self, removed: Removed) -> None:
        self.called.append(f"removed {[seq for seq, _ in removed.named]}")

    def purged(self, subjects: bytes, first_left: int) -> None:
        self.called.append(f"purged {subjects.decode()}")

    def applied(self, operation: Operation, own: bool) -> None:
        self.called.append(f"applied {type(operation).__name__} {own}")

    def acknowledged(self, first_seq: int, subjects: Sequence[bytes]) -> None:
        self.called.append(f"acknowledged {first_seq} {len(subjects)}")

    def committed(self) -> None:
        self.called.append("committed")

    def lead(self, recovered: bool) -> None:
        self.called.append("lead")

    def follow(self) -> None:
        self.called.append("follow")

    def stop(self, deleted: bool) -> None:
        self.called.append(f"stop {deleted}")

    def dump(self) -> dict[str, object]:
        return {"colours": self.counts}

    def load(self, checkpoint: bytes) -> None:
        self.counts = msgspec.msgpack.decode(checkpoint, type=_State).colours

    def info(self) -> dict[str, Any]:
        return {"colours": len(self.counts)}

    def since(self) -> list[str]:
        called, self.called = self.called, []
        return called


class _State(msgspec.Struct):
    colours: dict[bytes, int] = {}


def test_a_feature_is_one_entry_more_in_the_list(tmp_path: Path) -> None:
    world = World(str(tmp_path), features=(*FEATURES, lambda stream: Colours()))
    stream = world.stream
    colours = stream.feature(Colours)
    assert colours.since() == ["configure -1", "applied CreateStream True", "committed", "lead"]
    assert world.acked("s.a", Nats_Colour="red") == {"stream": "S", "seq": 1}
    assert colours.since() == ["arrived", "taken 1", "acknowledged 1 1", "committed"]
    assert world.acked("s.a", Nats_Colour="green")["error"]["err_code"] == 10111
    assert colours.since() == ["arrived"]
    world.acked("s.b")
    assert colours.since() == ["acknowledged 2 1", "committed"]
    stream.propose(DeleteMessage(2))
    stream.propose(Purge(b"s.a"))
    world.settle()
    assert colours.since() == [
        "removed [2]",
        "applied DeleteMessage True",
        "removed [1]",
        "purged s.a",
        "applied Purge True",
        "committed",
    ]
    stream.propose(UpdateStream(msgspec.json.encode(msgspec.structs.replace(stream.config, max_msgs=9))))
    world.settle()
    assert colours.since() == ["configure 9", "applied UpdateStream True", "committed"]
    stream.lost([])
    assert colours.since() == ["follow"]
    stream.stop(deleted=True)
    assert colours.since() == ["stop True"]


HOOKS = [name for name, member in vars(Feature).items() if callable(member) and not name.startswith("_")]


def _recorded(name: str) -> Callable[..., Any]:
    def hook(self: Recorder, *args: Any) -> Any:
        self.called.add(name)
        return getattr(Feature, name)(self, *args)

    return hook


_Recorder: type[Feature] = type("_Recorder", (Feature,), {name: _recorded(name) for name in HOOKS})


class Recorder(_Recorder):  # type: ignore[valid-type, misc]
    """Records the hooks that are called, without any effect."""

    operations = (Near,)

    def __init__(self, called: set[str]) -> None:
        self.called = called

    def apply(self, operation: Operation) -> object:
        self.called.add("apply")
        return None


def test_the_core_calls_every_hook(tmp_path: Path) -> None:
    called: set[str] = set()
    recorder: Feature = Recorder(called)
    features = (*FEATURES, lambda stream: recorder)
    world = World(str(tmp_path), features=features, allow_rollup_hdrs=True)
    stream = world.stream
    world.acked("s.a", Nats_Msg_Id="1")
    world.acked("s.a", Nats_Rollup="sub")
    for operation in (DeleteMessage(1), Purge(b"s.b"), Near()):
        stream.propose(operation)
    world.settle()
    assert stream.proposer.duplicate_of(Effect(0)) == 0
    info_shown(stream, world.clock.now())
    stream.memory()
    stream.acts_at()
    stream.rebased()
    stream.checkpoint()
    world.settle()
    stream.pipeline.log_progress([ConsumerProgress("nobody", b"")])
    world.acked("s.b")
    stream.lost([])
    stream.stop(deleted=False)
    stream.store.log.close()
    World(str(tmp_path), clock=world.clock, features=features)
    assert called | {"passes_run", "taken_run"} == set(HOOKS), "no run passes where messages are prepared"


class Judge(Feature):
    """Judges every message; a run passes while `passes` says so."""

    def __init__(self) -> None:
        self.passes = True
        self.asked: list[tuple[int, int]] = []

    def judges_every_message(self) -> bool:
        return True

    def passes_run(self, view: View, run: Publishes, begin: int, end: int) -> int:
        self.asked.append((begin, end))
        return end if self.passes else begin


def test_a_run_passes_if_all_features_that_judge_every_message_let_it(tmp_path: Path) -> None:
    judges = [Judge(), Judge()]
    world = World(str(tmp_path), features=(*FEATURES, lambda stream: judges[0], lambda stream: judges[1]))
    run = run_of(b"PUB s.a 1\r\nx\r\n" * 5, NOTHING_APART)
    proposer = world.stream.proposer
    assert proposer.guarded
    assert proposer._take_run(run, 1, 4) == 4
    judges[1].passes = False
    assert proposer._take_run(run, 0, 5) == 0
    assert judges[0].asked == judges[1].asked == [(1, 4), (0, 5)]
    judges[1].passes = True
    proposer.guard()
    assert proposer._take_run(run, 0, 5) == 0, "an operation is in flight"
    proposer.resume()
    assert proposer._take_run(run, 0, 5) == 5
    world.settle()
    assert world.stream.store.msgs == 8
    silent = World(str(tmp_path / "m"), features=(*FEATURES, lambda stream: Judge()), no_ack=True)
    assert silent.stream.proposer._take_run(run, 0, 5) == 0, "another rule of the configuration judges, too"


def test_what_a_feature_keeps_comes_back_from_the_checkpoint_and_the_log_behind_it(tmp_path: Path) -> None:
    world = World(str(tmp_path), features=(*FEATURES, lambda stream: Colours()))
    world.acked("s.a", Nats_Colour="red")
    world.stream.checkpoint()
    world.settle()
    world.acked("s.a", Nats_Colour="red")
    world.acked("s.a", Nats_Colour="blue")
    world.stream.store.log.close()
    again = World(str(tmp_path), clock=world.clock, features=(*FEATURES, lambda stream: Colours()))
    assert again.stream.feature(Colours).counts == {b"red": 2, b"blue": 1}


def test_the_fields_of_a_checkpoint_are_in_the_order_of_earlier_releases(tmp_path: Path) -> None:
    fields = msgspec.msgpack.decode(b"".join(World(str(tmp_path)).stream.dump()))
    assert list(fields) == [
        "create",
        "dedupe",
        "last_msg_id",
        "last_msg_id_seq",
        "ttls",
        "consumers",
        "removing",
        "created",
        "ids",
        "schedules",
        "intervals",
        "sources",
        "near",
        "ages",
        "steady_ns",
    ]


def test_no_hook_is_called_for_single_plain_messages(tmp_path: Path) -> None:
    """No hook is called for single plain messages if no feature is configured."""
    proposer = World(str(tmp_path)).stream.proposer
    assert not proposer.guarded
    assert not proposer._hooks.prepared
    assert not proposer._hooks.renamed
    transform = {"src": "s.*", "dest": "t.$1"}
    world = World(str(tmp_path / "t"), subject_transform=transform, republish={"src": ">", "dest": "r.>"})
    assert world.stream.proposer.guarded
    assert len(world.stream.proposer._hooks.prepared) == len(world.stream.proposer._hooks.renamed) == 1


def test_hooks_that_are_not_overridden_are_not_called() -> None:
    hooks = feature.Hooks([Expected(), Colours()])
    hooks.bind()
    assert len(hooks.decided_by) == 1
    assert len(hooks.stored) == 1
    assert not hooks.prepared


def test_the_orders_of_publish_rules_are_those_of_nats_server(tmp_path: Path) -> None:
    """The orders of publish rules are those of nats-server.

    The first error depends on the number of replicas; see `PublishRule`. Other rules may stand between.
    """
    rules = World(str(tmp_path)).stream.proposer.rules

    def check_order(placed: Sequence[PublishRule], expected: list[str]) -> None:
        names = [f"{rule.check.__module__.rpartition('.')[2]}.{rule.check.__name__.strip('_')}" for rule in placed]
        assert [name for name in names if name in expected] == expected

    for order in ("single", "replicated", "member"):
        places = [getattr(rule, order) for rule in getattr(rules, order)]
        assert len(set(places)) == len(places), "two rules share a place"
    check_order(
        rules.single,
        [
            "counters.check",
            "expected.check_stream",
            "ttl.check_enabled_single",
            "expected.check_of_subject",
            "expected.check_last",
            "schedule_rules.check",
            "sources.refuse_source",
            "dedupe.check_id",
            "dedupe.check_last",
            "rollup.check",
            "counters.count",
            "ttl.check_value",
            "ttl.raise",
        ],
    )
    check_order(
        rules.replicated,
        [
            "counters.check",
            "expected.check_stream",
            "ttl.check_enabled",
            "ttl.check_value",
            "dedupe.check_id",
            "sources.refuse_source",
            "counters.count",
            "expected.check_last",
            "expected.check_of_subject",
            "schedule_rules.check",
            "rollup.check_rewritten",
            "dedupe.check_last",
            "ttl.raise",
        ],
    )
    check_order(
        rules.member,
        [
            "atomic.refuse_last_id",
            "counters.check",
            "expected.check_stream",
            "ttl.check_enabled",
            "ttl.check_value",
            "dedupe.check_id",
            "sources.refuse_source",
            "counters.check_member",
            "atomic.check_last",
            "atomic.check_of_subject",
        ],
    )
