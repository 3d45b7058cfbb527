"""The interface between the core of a stream and its features.

The core takes a message from its publisher to its ack. Everything else that a stream can do is a feature: message ids,
TTLs, schedules, counters, batches, consumers, mirrors. The core has a list of features and calls their hooks at fixed
points, in the order of the list; it knows none of them by name. `lakestream/stream/assembly.py` puts the list together.

A feature is an object with a state of its own. Its constructor takes what it uses (a clock, the store, the pipeline to
propose through; consumers and mirrors take the core). It overrides the hooks that it needs; hooks that are not
overridden cost nothing, and hooks for single messages are only called while `active` says so. The hooks, in the order
of a message's way:

    configure                 the configuration is known, or has changed
    arrived, renamed,         a message with headers came, or one that the configuration may refuse or change
      takes_over
    rules, passes_run         publish rules: see publish.py; messages of a run that need not be judged one by one
    opened, prepared, taken,  the message gets its sequence and goes into a batch
      taken_run
    before_flush,             proposals are handed to the group
      before_write
    unwanted, received,       entries are committed and change the stream: on every replica and at recovery
      stored, removed, replaced, purged, skipped, apply, applied, progressed
    awaited, finish,          this node proposed them and answers for them
      acknowledged, committed
    lead, follow, rewound,    this node begins or ceases to decide for the stream
      acts_at, stop
    dump, load, info          checkpoints and StreamInfo

Hooks from `unwanted` to `progressed` must depend on the log alone and read no clock (invariant 2), except for what a
feature keeps for its leader only, such as timers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import msgspec

from lakestream.protocol.publishes import Publishes
from lakestream.stream.core.batch import After, Batch
from lakestream.stream.core.config import StreamConfig
from lakestream.stream.core.effect import Effect, EffectReader, Effects
from lakestream.stream.core.limits import Removed
from lakestream.stream.core.operations import ConsumerProgress, Operation, Removing
from lakestream.stream.core.publish import IncomingMessage, PublishRule, PublishRules, View

T = TypeVar("T")

NEVER = 1 << 62
"""Time of what does not happen, in ns."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages of one entry that were stored."""

    first_seq: int
    subjects: Sequence[bytes]
    effects: Sequence[Effect]
    """Effects of those that have any, ascending."""
    last_time: int
    """Time at which the last of them was stored, in ns."""
    archived: bool = False
    """True for a part of an archive that is being restored. Rollups and message ids have no effect then, and a message
    may have been removed by limits already."""


class Feature:
    """One feature of one stream. Every hook does nothing unless it is overridden."""

    rules: ClassVar[Sequence[PublishRule]] = ()
    """Rules that a message has to pass before it is stored. All streams share them: `View.feature` has the state."""
    effects: ClassVar[Sequence[tuple[bytes, EffectReader]]] = ()
    """Headers, and the reader of what each means once a message is stored."""
    operations: ClassVar[tuple[type[Operation], ...]] = ()
    """Kinds of log operations that `apply` applies."""
    columnar: ClassVar[frozenset[bytes]] = frozenset()
    """Headers that `passes_run` judges. A message with any other header of the protocol is judged by itself."""
    reply_suffix: ClassVar[bytes] = b""
    """Messages whose reply subject ends so are offered to `takes_over`, also where nothing else asks for a check."""
    overridden: ClassVar[frozenset[str]] = frozenset()
    """Names of the hooks that the class overrides; worked out for each class once."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.overridden = frozenset(name for name in HOOKS if getattr(cls, name) is not getattr(Feature, name))

    # ------------------------------------------------------------------ configuration
    def configure(self, config: StreamConfig) -> None:
        """Take the stream's configuration: once before anything else, then after each change."""

    def active(self, hook: str) -> bool:
        """Return False if the hook of this name need not be called under the present configuration."""
        return True

    def judges_every_message(self) -> bool:
        """Return True if messages without headers have to pass the rules too."""
        return False

    def passes_run(self, view: View, run: Publishes, begin: int, end: int) -> int:
        """Return the first of these messages that has to be judged by itself, `end` if all of them pass this feature's
        rules as they are: those for every message, and those for `columnar` headers. The first one gets the next
        sequence. The rules for single messages say what passes; this may only be more cautious."""
        return end

    def applies_single_messages(self) -> bool:
        """Return True if the messages of an entry have to be applied one by one."""
        return False

    def memory(self) -> dict[str, int]:
        """Return roughly the bytes of memory of what grows with messages or clients, by its name in monitoring."""
        return {}

    # ------------------------------------------------------------------ messages are decided (on the leader)
    def arrived(self, message: IncomingMessage) -> None:
        """Look at a message before every rule; may rewrite its header, or set its `observer`."""

    def renamed(self, subject: bytes) -> bytes:
        """Return the subject under which the stream keeps a message."""
        return subject

    def takes_over(self, message: IncomingMessage) -> bool:
        """Return True if this feature decides on the message and answers for it, as batches do for their members."""
        return False

    def decided_by(self, subject: bytes, header: bytes) -> bytes:
        """Return the subject (or pattern) whose last message decides on this message, b"" if that makes no difference.

        The message then waits for whatever in flight may remove that one.
        """
        return b""

    def opened(self, first_seq: int, time_ns: int, copied: bool = False) -> None:
        """Note that a batch begins with this sequence and time; `copied`: times are those of an origin."""

    def prepared(self, subject: bytes, header: bytes, payload: bytes) -> After | None:
        """Return what to call once the message that gets the next sequence is stored, None for nothing."""
        return None

    def taken(self, effect: Effect) -> None:
        """Note that a message with values in its effect has got its sequence, and is on its way to the log."""

    def taken_run(self, batch: Batch, run: Publishes, begin: int, end: int) -> None:
        """Note that messages of a run with `columnar` headers are the last ones of a batch."""

    def duplicate_of(self, effect: Effect) -> int:
        """Return the sequence of the stored message that one with this effect repeats, 0 if there is none."""
        return 0

    def removal_time(self, operation: Removing) -> int:
        """Return the time (ns) of an operation that is proposed now and may remove messages; 0: that of the last
        message. No later message gets an earlier time."""
        return 0

    # ------------------------------------------------------------------ proposals are handed over (on the leader)
    def before_flush(self) -> None:
        """Propose what is due in this turn. Called in each turn with proposals, also while a write is under way."""

    def before_write(self) -> None:
        """Propose what has to be part of the write that begins now."""

    # ------------------------------------------------------------------ entries are applied (on every replica)
    def unwanted(self, first_seq: int, subjects: Sequence[bytes]) -> Sequence[tuple[int, bytes]]:
        """Return (sequence, subject) of those just stored that the stream does not keep. Also called to ask, with
        messages that are not stored."""
        return ()

    def received(self, stored: Stored) -> None:
        """Note stored messages of another node, an earlier process (at recovery) or an archive.

        Called before limits and `stored`. For them `opened` and `taken` were not called here.
        """

    def stored(self, stored: Stored) -> None:
        """Act on messages that were stored, after limits and rollups."""

    def removed(self, removed: Removed) -> None:
        """Act on messages that were removed, for any reason."""

    def replaced(self, effect: Effect) -> None:
        """Act on a rollup, after `removed` was called for what it replaced."""

    def purged(self, subjects: bytes, first_left: int) -> None:
        """Act on the removal of what matches `subjects` (all when empty), after `removed` was called.

        `first_left`: the first matching sequence that is left, or the next one.
        """

    def skipped(self, before: int, last_seq: int) -> None:
        """Act on a purge that gave the sequences after `before` through `last_seq` to no message."""

    def apply(self, operation: Operation) -> object:
        """Apply an operation of one of the feature's own `operations`; return the result for its proposer."""
        raise NotImplementedError

    def applied(self, operation: Operation, own: bool) -> None:
        """Act on an operation of any kind that was applied. `own`: its proposer is on this node and gets the result."""

    def progressed(self, entries: Sequence[ConsumerProgress]) -> None:
        """Apply the progress entries of another node, or of an earlier process, that are this feature's."""

    # ------------------------------------------------------------------ this node answers for them (on the leader)
    def finish(self, operation: Operation, then: Callable[[], None]) -> bool:
        """Call `then`, which answers an operation, once its consequences are stored. Return False if it has none."""
        return False

    def awaited(self, subjects: Sequence[bytes]) -> bool:
        """Return True if messages of these subjects are likely to be delivered at once: their pub acks leave with them,
        and not before they are applied."""
        return False

    def acknowledged(self, first_seq: int, subjects: Sequence[bytes]) -> None:
        """Act on messages that this node took, after their pub acks were handed to the connections."""

    def committed(self) -> None:
        """Act on entries that were committed and applied, after the next write has begun."""

    # ------------------------------------------------------------------ leading begins and ends
    def rewound(self, last_seq: int) -> None:
        """Forget messages above `last_seq`: they were decided and are not stored."""

    def rebased(self) -> None:
        """Look at the store anew: it got messages that were never in the log."""

    def lead(self, recovered: bool) -> None:
        """Begin what only the leader does. Everything committed is applied. `recovered`: the server was restarted."""

    def follow(self) -> None:
        """Cease it; nothing that was not logged counts. May be called without `lead`, and twice."""

    def stop(self, deleted: bool) -> None:
        """End with the stream on this node. `deleted`: the stream is gone for good."""
        self.follow()

    def acts_at(self) -> int:
        """Return the time (steady clock, ns) at which it acts although nothing is asked of the stream, `NEVER` if it
        does not, 0 if it may at any time. Until then the stream need not be open. On the leader."""
        return NEVER

    # ------------------------------------------------------------------ state
    def dump(self) -> Mapping[str, object]:
        """Return the feature's fields of the checkpoint."""
        return {}

    def load(self, checkpoint: bytes) -> None:
        """Take the feature's fields from a checkpoint (a MessagePack map of all fields); entries after it follow."""

    def info(self) -> Mapping[str, Any]:
        """Return the feature's fields of StreamInfo."""
        return {}


Of = tuple[Feature, ...]


class Hooks(msgspec.Struct):
    """The features of one stream; for each hook those that override it and for which it is active, in list order."""

    features: list[Feature]
    judges_every_message: Of = ()
    passes_run: Of = ()
    applies_single_messages: Of = ()
    arrived: Of = ()
    renamed: Of = ()
    takes_over: Of = ()
    decided_by: Of = ()
    opened: Of = ()
    prepared: Of = ()
    taken: Of = ()
    taken_run: Of = ()
    duplicate_of: Of = ()
    removal_time: Of = ()
    before_flush: Of = ()
    before_write: Of = ()
    unwanted: Of = ()
    received: Of = ()
    stored: Of = ()
    removed: Of = ()
    replaced: Of = ()
    purged: Of = ()
    skipped: Of = ()
    applied: Of = ()
    progressed: Of = ()
    finish: Of = ()
    awaited: Of = ()
    acknowledged: Of = ()
    committed: Of = ()
    rewound: Of = ()
    rebased: Of = ()
    info: Of = ()

    def bind(self) -> None:
        """Collect the hooks to be called. Call it after each change of the configuration."""
        features, kinds = self.features, tuple(map(type, self.features))
        answers = tuple([features[at].active(name) for name, at in _asked(kinds)])
        for places, names in _users(kinds, answers):
            users = tuple([features[at] for at in places])
            for name in names:
                setattr(self, name, users)

    def feature(self, kind: type[T]) -> T:
        """Return the stream's feature of this class."""
        for each in self.features:
            if type(each) is kind:
                return each
        for each in self.features:
            if isinstance(each, kind):
                return each
        raise LookupError(f"the stream has no {kind.__name__}; it is to be in the list of features")


HOOKS = Hooks.__struct_fields__[1:]


@lru_cache(maxsize=64)
def _asked(kinds: tuple[type[Feature], ...]) -> list[tuple[str, int]]:
    """Return each hook with the places of the features that override it, and say under which configurations it is
    active."""
    asked = [(at, kind) for at, kind in enumerate(kinds) if kind.active is not Feature.active]
    return [(name, at) for name in HOOKS for at, kind in asked if name in kind.overridden]


@lru_cache(maxsize=256)
def _users(kinds: tuple[type[Feature], ...], answers: tuple[bool, ...]) -> list[tuple[tuple[int, ...], list[str]]]:
    """Return the places of the features that hooks call, given the answers of those that are `_asked`, with these
    hooks' names. Streams of like configurations share it."""
    rest = {asked for asked, active in zip(_asked(kinds), answers, strict=True) if not active}
    together: dict[tuple[int, ...], list[str]] = {}
    for name in HOOKS:
        places = [at for at, kind in enumerate(kinds) if name in kind.overridden and (name, at) not in rest]
        together.setdefault(tuple(places), []).append(name)
    return list(together.items())


@lru_cache(maxsize=64)
def declared(kinds: tuple[type[Feature], ...]) -> PublishRules:
    """Return the rules and effects of these features: the same object for all streams that have the same ones."""
    effects = Effects([effect for kind in kinds for effect in kind.effects])
    return PublishRules([rule for kind in kinds for rule in kind.rules], effects)
