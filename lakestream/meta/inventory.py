"""Index of the streams by what a new one is checked against: subjects, reserved bytes, nodes.

Belongs here: sums and trees over the assignments and over changes that are proposed, kept up to date entry by entry, so
that creating a stream costs as much beside ten thousand others as alone. `account/api/streams.py` has the checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from lakestream.meta.assignments import Assignment, MetaState
from lakestream.protocol.accounts import tier_of
from lakestream.stream.core.config import StreamConfig

_NONE: tuple[str, ...] = ()


class Owners:
    """The subjects of streams, each with the names of the streams that have it."""

    def __init__(self) -> None:
        # A node has, by token, the nodes below it, and by token and dot the owners of the subject that ends there. No
        # token contains a dot.
        self._root: dict[bytes, Any] = {}

    def add(self, subject: bytes, name: str) -> None:
        """Add a subject of a stream."""
        *path, last = subject.split(b".")
        node = self._root
        for token in path:
            node = node.setdefault(token, {})
        end = last + b"."
        node[end] = (*node.get(end, _NONE), name)

    def remove(self, subject: bytes, name: str) -> None:
        """Remove a subject of a stream, which has it."""
        *path, last = subject.split(b".")
        nodes = [self._root]
        for token in path:
            nodes.append(nodes[-1][token])
        end = last + b"."
        left = tuple(owner for owner in nodes[-1][end] if owner != name)
        if left:
            nodes[-1][end] = left
            return
        del nodes[-1][end]
        for token in reversed(path):
            if nodes.pop():
                return
            del nodes[-1][token]

    def overlapping(self, subject: bytes) -> Iterator[str]:
        """Yield the owners of subjects that overlap with `subject`; some more than once."""
        tokens = subject.split(b".")
        open_ends = [(self._root, 0)]
        while open_ends:
            node, at = open_ends.pop()
            token = tokens[at]
            yield from node.get(b">.", _NONE)
            if token == b">":
                yield from _all_in(node)
            elif at + 1 < len(tokens):
                following = node if token == b"*" else (token, b"*")
                below = ((name, node.get(name)) for name in following if name[-1:] != b".")
                open_ends += [(child, at + 1) for _, child in below if child is not None]
            elif token == b"*":
                for name, owners in node.items():
                    if name[-1:] == b".":
                        yield from owners
            else:
                yield from node.get(token + b".", _NONE)
                yield from node.get(b"*.", _NONE)


def _all_in(node: dict[bytes, Any]) -> Iterator[str]:
    """Yield the owners of all subjects that go through a node."""
    nodes = [node]
    while nodes:
        for name, value in nodes.pop().items():
            if name[-1:] == b".":
                yield from value
            else:
                nodes.append(value)


class AccountInventory:
    """The streams of one account by name: as they are assigned, or as a proposed change will make them. `owners`: by
    subject."""

    def __init__(self) -> None:
        self.configs: dict[str, StreamConfig] = {}
        self.owners = Owners()
        self._streams = Counter[str]()  # number by tier
        self._reserved = Counter[tuple[str, int]]()  # bytes by storage and number of replicas

    def put(self, name: str, config: StreamConfig | None) -> None:
        """Set a stream's configuration, or remove the stream."""
        before = self.configs.pop(name, None)
        if before == config:
            if config is not None:
                self.configs[name] = config
            return
        if before is not None:
            self._count(before, -1)
            for subject in dict.fromkeys(before.subjects):
                self.owners.remove(subject.encode(), name)
        if config is not None:
            self.configs[name] = config
            self._count(config, 1)
            for subject in dict.fromkeys(config.subjects):
                self.owners.add(subject.encode(), name)

    def _count(self, config: StreamConfig, sign: int) -> None:
        self._streams[tier_of(config.num_replicas)] += sign
        self._reserved[config.storage, config.num_replicas] += sign * config.reserved_bytes

    def streams(self, tier: str = "", beside: str = "") -> int:
        """Count the streams, or those of a tier, without stream `beside`."""
        own = self.configs.get(beside)
        counted = self._streams[tier] if tier else len(self.configs)
        return counted - (own is not None and tier in ("", tier_of(own.num_replicas)))

    def reserved(self, storage: str, copies: Callable[[int], int], tier: str = "", beside: str = "") -> int:
        """Return the bytes that streams of a storage, and of a tier, reserve, without stream `beside`.

        `copies`: how often the bytes of a stream with so many replicas count.
        """
        own = self.configs.get(beside)
        reserved = 0
        for (kind, replicas), size in self._reserved.items():
            if kind == storage and tier in ("", tier_of(replicas)):
                if own is not None and (own.storage, own.num_replicas) == (kind, replicas):
                    size -= own.reserved_bytes
                reserved += size * copies(replicas)
        return reserved

    def overlaps(self, config: StreamConfig) -> bool:
        """Return True if a subject of a stream overlaps with one of another stream."""
        overlapping = self.owners.overlapping
        return any(name != config.name for subject in config.subjects for name in overlapping(subject.encode()))


class Inventory:
    """The streams of all accounts, and what the nodes hold of them."""

    def __init__(self) -> None:
        self.holds, self.leads = Counter[str](), Counter[str]()
        """Number of replicas of each node, and of streams of which it is the preferred leader."""
        self.reserved = Counter[tuple[str, str]]()
        """Bytes that assigned streams reserve, by storage and node."""
        self._state: MetaState | None = None
        self._accounts: dict[str, AccountInventory] = {}
        self._assigned: dict[tuple[str, str], tuple[Assignment, StreamConfig]] = {}
        self._proposed: dict[tuple[str, str], StreamConfig] = {}

    def renew(self, state: MetaState, config_of: Callable[[Assignment], StreamConfig]) -> None:
        """Take the assignments of a state, or the changes since the last call."""
        if state is not self._state:
            self._state = state
            state.changed = dict.fromkeys((*self._assigned, *state.streams))
        if not state.changed:
            return
        changed, state.changed = state.changed, {}
        for key in changed:
            before, after = self._assigned.pop(key, None), state.streams.get(key)
            if before is not None:
                self._count(*before, -1)
            if after is not None:
                self._assigned[key] = after, config_of(after)
                self._count(*self._assigned[key], 1)
            self._show(key)

    def of(self, account: str) -> AccountInventory:
        """Return the streams of an account."""
        found = self._accounts.get(account)
        if found is None:
            found = self._accounts[account] = AccountInventory()
        return found

    def propose(self, account: str, config: StreamConfig) -> None:
        """Count a stream as if a proposed change were applied."""
        self._proposed[account, config.name] = config
        self._show((account, config.name))

    def proposed(self, account: str, name: str) -> None:
        """End `propose`: the change is applied, or failed."""
        if self._proposed.pop((account, name), None) is not None:
            self._show((account, name))

    def all_reserved(self, storage: str, beside: tuple[str, str]) -> int:
        """Return the bytes that streams of a storage reserve, once for each stream but `beside` (account, name)."""
        account, name = beside
        return sum(
            each.reserved(storage, lambda _: 1, beside=name if owner == account else "")
            for owner, each in self._accounts.items()
        )

    def _show(self, key: tuple[str, str]) -> None:
        assigned = self._assigned.get(key)
        self.of(key[0]).put(key[1], self._proposed.get(key) or (None if assigned is None else assigned[1]))

    def _count(self, assignment: Assignment, config: StreamConfig, sign: int) -> None:
        self.leads[assignment.peers[0]] += sign
        for peer in assignment.peers:
            self.holds[peer] += sign
            self.reserved[config.storage, peer] += sign * config.reserved_bytes
