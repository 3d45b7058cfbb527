"""Choosing the nodes of a stream.

Belongs here: the nodes that may hold a stream (cluster, tags, storage, the server's unique tag), the choice among them,
and the error texts. Sans-IO: the state of the nodes is passed in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence

import msgspec

from lakestream.protocol.api.errors import ApiError, api_error
from lakestream.stream.core.config import Placement, StreamConfig

EXCLUDED_TAG = "!jetstream"
"""A node with this server tag keeps its streams and gets no others, as with nats-server."""

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 8


def peer_id(name: str) -> str:
    """Return the short id of a node that the API shows beside its name, as nats-server derives it."""
    return "".join(_DIGITS[byte % len(_DIGITS)] for byte in hashlib.sha256(name.encode()).digest()[:_ID_LENGTH])


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A node that could hold streams. Limits and reservations in bytes; -1: no limit."""

    name: str
    cluster: str = ""
    tags: tuple[str, ...] = ()
    alive: bool = True
    max_memory: int = -1
    max_file: int = -1
    reserved_memory: int = 0
    reserved_file: int = 0
    replicas: int = 0
    """Number of replicas that it holds."""
    leads: int = 0
    """Number of streams of which it is the preferred leader."""

    def room(self, storage: str, size: int) -> bool:
        """Return True if `size` more bytes can be reserved."""
        limit = self.max_memory if storage == "memory" else self.max_file
        reserved = self.reserved_memory if storage == "memory" else self.reserved_file
        return limit < 0 or reserved + size <= limit

    def lacking(self, tags: Sequence[str]) -> list[str]:
        """Return the `tags` that it does not satisfy; `!` before a tag negates it. Case is ignored."""
        own = {tag.lower() for tag in self.tags}
        return [tag for tag in tags if (tag[1:].lower() in own if tag[:1] == "!" else tag.lower() not in own)]


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's requirements. `size`: bytes to reserve on each node; `unique_tag`: a prefix of server tags."""

    replicas: int
    placement: Placement | None = None
    storage: str = "file"
    size: int = 0
    unique_tag: str = ""
    cluster: str = ""
    """The cluster whose nodes are chosen when the placement names none."""


class Placing:
    """Chooses the nodes of streams: here, on a server without other nodes. Every method but `copies` may raise
    ApiError.

    Args:
        me: this node.
        max_memory, max_file: limits in bytes; -1: none.

    Attributes:
        several: streams may have several replicas.
    """

    several = False

    def __init__(self, me: str, max_memory: int = -1, max_file: int = -1) -> None:
        self._me, self._max_memory, self._max_file = me, max_memory, max_file

    def copies(self, replicas: int) -> int:
        """Return how often a stream with so many replicas is stored."""
        return 1

    def check_storage(self, config: StreamConfig, reserved: Callable[[], int]) -> None:
        """Check the room of this server, if it is the only node, beside what the other streams of all accounts reserve
        of the same storage."""
        from lakestream.stream import rules  # with the first stream

        rules.check_reserved(config, reserved, self._max_memory, self._max_file)

    def check_growth(self, peers: Sequence[str], old: StreamConfig, new: StreamConfig) -> None:
        """Check that the nodes that hold a stream have room for its new configuration, unless `check_storage` does."""

    def place(self, config: StreamConfig, *, keep: Sequence[str] = (), avoid: Collection[str] = ()) -> tuple[str, ...]:
        """Return the nodes that are to hold a stream, the preferred leader first; see `choose`."""
        return (self._me,)

    def leader(self, placement: Placement, members: Sequence[str]) -> str:
        """Return the node to which this leader transfers leadership; "" for any. See `choose_leader`."""
        return ""


_REASONS = ("peer offline", "exclude tag set", "insufficient storage", "server tag not unique")


class _Refusals:
    """Reasons why nodes were not chosen: of `_REASONS`, and tags that they lack."""

    def __init__(self) -> None:
        self.reasons: set[str] = set()
        self.tags: list[str] = []

    def error(self) -> ApiError:
        reasons = [reason for reason in _REASONS if reason in self.reasons]
        if self.tags:
            reasons.append(f"tags not matched [{', '.join(repr(tag) for tag in self.tags)}]")
        return api_error(10005, err=", ".join(["no suitable peers for placement", *reasons]))


def choose(
    wanted: Requirements, candidates: Sequence[Candidate], *, keep: Sequence[str] = (), avoid: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the nodes that are to hold a stream, the preferred leader first.

    Nodes with fewer streams are preferred. An offline node is chosen only if there are too few others and a majority of
    the stream's nodes is online.

    Args:
        wanted: the stream's requirements.
        candidates: every node of the cluster.
        keep: nodes that hold it now: they stay, in this order, as far as they meet the requirements, even if offline.
        avoid: nodes that are not to be chosen.

    Raises:
        ApiError: 10005 when too few nodes are left, with the reasons why others were not chosen.
    """
    refusals = _Refusals()
    kept = [name for name in keep if name not in avoid]
    by_name = {candidate.name: candidate for candidate in candidates}
    held = [by_name[name] for name in kept if name in by_name and not _misplaced(wanted, by_name[name])]
    chosen = held[: wanted.replicas]
    taken = {_unique(wanted.unique_tag, candidate) for candidate in chosen} - {""}
    fitting = [
        candidate
        for candidate in candidates
        if candidate not in held and candidate.name not in avoid and _fits(wanted, candidate, refusals)
    ]
    fitting.sort(key=lambda candidate: (not candidate.alive, candidate.replicas, candidate.name))
    added: list[Candidate] = []
    away = sum(not candidate.alive for candidate in chosen)
    for candidate in fitting:
        if len(chosen) + len(added) == wanted.replicas:
            break
        unique = _unique(wanted.unique_tag, candidate)
        if wanted.unique_tag and (not unique or unique in taken):
            refusals.reasons.add("server tag not unique")
            continue
        if not candidate.alive and (away := away + 1) > (wanted.replicas - 1) // 2:
            refusals.reasons.add("peer offline")
            break
        taken.add(unique)
        added.append(candidate)
    if len(chosen) + len(added) < wanted.replicas:
        raise refusals.error()
    if not chosen:  # a new stream: prefer the node that leads the fewest
        added.sort(key=lambda candidate: (not candidate.alive, candidate.leads, candidate.replicas, candidate.name))
    return tuple(candidate.name for candidate in chosen + added)


def _misplaced(wanted: Requirements, candidate: Candidate) -> bool:
    """Return True if the placement excludes a node that holds the stream."""
    placement = wanted.placement
    if placement is None:
        return False
    elsewhere = bool(placement.cluster) and placement.cluster != candidate.cluster
    return elsewhere or bool(candidate.lacking(placement.tags or ()))


def _fits(wanted: Requirements, candidate: Candidate, refusals: _Refusals) -> bool:
    placement = wanted.placement or Placement()
    if (placement.cluster or wanted.cluster) not in ("", candidate.cluster):
        return False
    if EXCLUDED_TAG in candidate.tags:
        refusals.reasons.add("exclude tag set")
        return False
    lacking = candidate.lacking(placement.tags or ())
    if lacking:
        refusals.tags += [tag for tag in lacking if tag not in refusals.tags]
        return False
    if not candidate.room(wanted.storage, wanted.size):
        refusals.reasons.add("insufficient storage")
        return False
    return True


def _unique(prefix: str, candidate: Candidate) -> str:
    """Return the node's tag that begins with `prefix`; "" when there is no such tag or no prefix."""
    if not prefix:
        return ""
    return next((tag for tag in candidate.tags if tag.lower().startswith(prefix.lower())), "")


def choose_leader(placement: Placement, members: Sequence[str], candidates: Sequence[Candidate], leader: str) -> str:
    """Return the voter to which a leader transfers leadership; "" for any.

    Raise ApiError 10005 when no voter fits the placement.
    """
    by_name = {candidate.name: candidate for candidate in candidates}
    if placement.preferred:
        if placement.preferred not in members:
            raise api_error(10005, err=f'preferred server "{placement.preferred}" not known')
        if placement.preferred == leader:
            raise api_error(10005, err=f'preferred server "{leader}" is already leader')
        return placement.preferred
    if not placement.cluster and not placement.tags:
        return ""
    for name in members:
        candidate = by_name.get(name)
        if candidate is None or name == leader or not candidate.alive or candidate.lacking(placement.tags or ()):
            continue
        if placement.cluster in ("", candidate.cluster):
            return name
    raise api_error(10005, err="no replacement peer connected")
