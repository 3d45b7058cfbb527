"""Validation: the log says which schemas each message was checked by, whenever the lake asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from lakestream.log.format.frame import Kind
from lakestream.log.format.runs import SchemaRun
from lakestream.log.format.segment import read_footer
from lakestream.log.store.segment_log import LogOptions
from lakestream.log.store.segment_store import SegmentStore
from lakestream.protocol.api.errors import ApiError
from lakestream.schemas.errors import Misfit
from lakestream.schemas.naming import Naming
from lakestream.stream.assembly import FEATURES
from lakestream.stream.core.operations import (
    ConsumerProgress,
    CreateStream,
    UpdateStream,
    decode_operation,
    decode_progress,
)
from lakestream.stream.core.publish import NotReady
from lakestream.stream.features.validation import STATED, Validation
from tests.unit.stream_world import World


class Registry:
    """`Definitions` whose version n of each schema takes payloads that begin with the digit n."""

    def __init__(self, versions: int = 1) -> None:
        self.versions, self.changes = versions, 0
        self.waiting: list[Callable[[ApiError | None], None]] = []
        self.ready = True

    def register(self) -> None:
        self.versions += 1
        self.changes += 1

    def need(self) -> None: ...

    def latest(self, name: str) -> int:
        return self.versions

    def misfit(self, rules: Naming, subject: bytes, header: bytes, payload: bytes) -> Misfit | None:
        if not self.ready:
            raise NotReady(self.waiting.append)
        reference = rules.named(subject, header, payload).reference
        assert reference is not None
        wanted = reference.version or self.versions
        return None if payload.startswith(b"%d" % wanted) else Misfit("", "version", f"it is not of {wanted}")


def world(directory: Path, registry: Registry, schema: str = "evo@latest", mode: str = "reject") -> World:
    features = [lambda s: Validation(registry, s.store, s.pipeline), *FEATURES[1:]]
    metadata = {"lakestream.schema": schema, "lakestream.validate": mode}
    return World(str(directory), features=features, options=LogOptions(seal_age_ns=1), metadata=metadata)


def update(world: World, **metadata: str) -> None:
    config = msgspec.structs.replace(world.stream.config, metadata=metadata)
    world.stream.propose(UpdateStream(msgspec.json.encode(config)))
    world.settle()


def seal(world: World) -> list[SchemaRun]:
    """Seal the open segment; return the schemas in its footer."""
    world.clock.advance(10)
    world.stream.store.seal_if_old()
    world.settle()
    return footers(world)[-1]


def footers(world: World) -> list[list[SchemaRun]]:
    """Return the schemas in the footer of each sealed segment."""
    return [list(read_footer(sealed.path)[0].schemas or ()) for sealed in world.stream.store.sealed()]


def stored(world: World, *payloads: bytes) -> None:
    for payload in payloads:
        assert "error" not in world.acked("s.a", payload)


def test_a_change_of_the_pinned_version_counts_from_its_place_in_the_log(tmp_path: Path) -> None:
    registry = Registry()
    one = world(tmp_path, registry, "evo@2")
    stored(one, b"2", b"2", b"2")
    waiting = one.publish("s.a", b"2")
    config = msgspec.structs.replace(
        one.stream.config, metadata=one.stream.config.metadata | {"lakestream.schema": "evo@3"}
    )
    one.stream.propose(UpdateStream(msgspec.json.encode(config)))
    late, fits = one.publish("s.a", b"2"), one.publish("s.a", b"3")  # behind the change, in the same turn
    one.settle()
    answers = [one.answer(reply) or {} for reply in (waiting, late, fits)]
    assert [answer.get("seq") for answer in answers] == [4, 0, 5]
    assert answers[1]["error"]["err_code"] == 20006
    assert seal(one) == [SchemaRun(0, "evo@2"), SchemaRun(5, "evo@3")]
    stored(one, b"3")
    assert seal(one) == [SchemaRun(5, "evo@3")], "what holds at its beginning, too"
    update(one)
    stored(one, b"anything")
    assert seal(one) == [SchemaRun(5, "evo@3"), SchemaRun(7, "")]
    stored(one, b"anything")
    assert seal(one) == []


def test_the_latest_version_is_stated_before_the_first_message_that_was_checked_by_it(tmp_path: Path) -> None:
    registry = Registry()
    one = world(tmp_path, registry)
    stored(one, b"1", b"1")
    flying = one.publish("s.a", b"1")
    registry.register()
    refused, fits = one.publish("s.a", b"1"), one.publish("s.a", b"2")  # in the same turn
    one.settle()
    answers = [one.answer(reply) or {} for reply in (flying, refused, fits)]
    assert [answer.get("seq") for answer in answers] == [3, 0, 4]
    runs = [SchemaRun(0, "evo@latest"), SchemaRun(1, "evo@latest", {"evo": 1}), SchemaRun(4, "evo@latest", {"evo": 2})]
    assert seal(one) == runs
    assert statements(one) == [{"evo": 1}, {"evo": 2}], "one for each version, not for each message"


def test_a_payload_that_deletes_a_row_needs_no_schema(tmp_path: Path) -> None:
    one = world(tmp_path, Registry())
    assert one.acked("s.a", b"")["error"]["err_code"] == 20006
    update(one, **{"lakestream.schema": "evo", "lakestream.validate": "reject", "lakestream.table": "latest"})
    stored(one, b"1", b"")
    assert "error" not in one.acked("s.a", b"", Nats_Schema="other"), "one with headers, which is judged by itself"
    assert one.acked("s.a", b"x")["error"]["err_code"] == 20006


def test_a_header_that_names_the_latest_version_is_stated_too(tmp_path: Path) -> None:
    registry = Registry(2)
    one = world(tmp_path, registry, "evo@2")
    stored(one, b"2")
    assert "error" not in one.acked("s.a", b"2", Nats_Schema="other")
    assert "error" not in one.acked("s.a", b"2", Nats_Schema="other@latest")
    assert seal(one) == [SchemaRun(0, "evo@2"), SchemaRun(2, "evo@2", {"other": 2})]


def test_without_validation_nothing_is_stated(tmp_path: Path) -> None:
    registry = Registry()
    one = world(tmp_path, registry)
    stored(one, b"1")
    update(one, **{"lakestream.schema": "evo"})
    stored(one, b"anything")
    registry.register()
    stored(one, b"anything")
    assert seal(one) == [
        SchemaRun(0, "evo@latest"),
        SchemaRun(1, "evo@latest", {"evo": 1}),
        SchemaRun(2, "evo"),
    ], "a version that nobody checks by would grow old"
    update(one, **{"lakestream.schema": "evo", "lakestream.validate": "tag"})
    stored(one, b"2")
    assert seal(one) == [SchemaRun(2, "evo"), SchemaRun(4, "evo", {"evo": 2})]


def test_the_versions_survive_a_restart_with_and_without_a_checkpoint(tmp_path: Path) -> None:
    for name in ("checkpoint", "replay"):
        registry = Registry()
        one = world(tmp_path / name, registry)
        stored(one, b"1")
        seal(one)
        registry.register()
        stored(one, b"2")
        update(one, **{"lakestream.schema": "evo@1", "lakestream.validate": "reject"})
        stored(one, b"1")
        update(one, **{"lakestream.schema": "evo", "lakestream.validate": "reject"})
        if name == "checkpoint":
            one.stream.store.close(one.stream.dump())
        else:
            one.stream.store.abandon()
        again = world(tmp_path / name, registry)
        stored(again, b"2")  # a segment that is old ends before it
        assert seal(again)[-1] == SchemaRun(4, "evo", {"evo": 2}), name
        assert footers(again)[1] == [
            SchemaRun(1, "evo@latest", {"evo": 1}),
            SchemaRun(2, "evo@latest", {"evo": 2}),
            SchemaRun(3, "evo@1"),
            SchemaRun(4, "evo"),
        ], name
        assert statements(again) == [{"evo": 1}, {"evo": 2}, {"evo": 2}], "once after each configuration"
        again.stream.store.abandon()


def test_a_replica_that_was_given_a_newer_configuration_replays_the_older_ones(tmp_path: Path) -> None:
    registry = Registry()
    one = world(tmp_path, registry, "evo@2")
    stored(one, b"2")
    update(one, **{"lakestream.schema": "evo", "lakestream.validate": "reject"})
    stored(one, b"1")
    update(one)
    stored(one, b"anything")
    entries = list(one.stream.store.log.frames(1, one.stream.store.log.last_index))  # type: ignore[attr-defined]
    other = World(
        str(tmp_path / "other"), features=[lambda s: Validation(registry, s.store, s.pipeline), *FEATURES[1:]]
    )
    create = decode_operation(entries[0][0].body)
    assert isinstance(create, CreateStream)
    follower = Validation(registry, other.stream.store, other.stream.pipeline)
    follower.configure(one.stream.config)
    follower.applied(create, own=False)
    assert isinstance(other.stream.store, SegmentStore)
    assert [run.rules for run in other.stream.store.removals().schemas or ()][-1] == "evo@2"
    follower.progressed([ConsumerProgress(STATED, msgspec.msgpack.encode({"evo": 1}))])
    assert (other.stream.store.removals().schemas or ())[-1].latest == {"evo": 1}


def test_a_segment_that_an_older_release_began_has_what_is_configured_now(tmp_path: Path) -> None:
    registry = Registry()
    one = world(tmp_path, registry, "evo@1")
    stored(one, b"1")
    store = one.stream.store
    assert isinstance(store, SegmentStore)
    store.removals().schemas = None  # as its checkpoint has it
    store.close(one.stream.dump())
    again = world(tmp_path, registry, "evo@1")
    assert seal(again) == [SchemaRun(0, "evo@1")]


def test_messages_that_wait_for_schemas_are_stated_when_they_are_checked(tmp_path: Path) -> None:
    registry = Registry()
    registry.ready = False
    one = world(tmp_path, registry)
    reply = one.publish("s.a", b"2")
    one.settle()
    assert one.answer(reply) is None
    registry.ready = True
    registry.register()
    for then in registry.waiting:
        then(None)
    one.settle()
    assert (one.answer(reply) or {}).get("seq") == 1
    assert seal(one)[-1] == SchemaRun(1, "evo@latest", {"evo": 2})


def statements(world: World) -> list[dict[str, int]]:
    """Return the statements in the log."""
    found: list[dict[str, int]] = []
    store: Any = world.stream.store
    for frame, _ in store.log.frames(1, store.log.last_index):
        body = frame.body
        if frame.kind == Kind.PROGRESS:
            found += [msgspec.msgpack.decode(each.state) for each in decode_progress(body) if each.name == STATED]
    return found
