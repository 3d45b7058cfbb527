"""Subject mappings of an account.

Belongs here: choosing the destination of a published subject, by weight and cluster. Transforms are in
protocol/transforms.py; the configuration is read in accounts.py.

A message is mapped once, before routing; the result is not mapped again. The mapping of a literal subject precedes
those with wildcards, of which the first in the configuration applies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from lakestream.config.account_options import Destination, SubjectMapping
from lakestream.protocol.goquote import quoted
from lakestream.protocol.subjects import SubjectFilters, covers, is_literal
from lakestream.protocol.transforms import MAX_SUBJECT, Transform, TransformError, hashed

FULL = 100
"""Maximum sum of the weights of a subject's destinations; the rest stays with the subject itself."""


class _Weighted(NamedTuple):
    """One destination, chosen when the number drawn is less than `below`."""

    shown: str
    transform: Transform
    below: int


class _Mapping:
    """The destinations of one subject. `clusters`: other destinations, by the cluster's name."""

    def __init__(self, mapping: SubjectMapping) -> None:
        self.source = mapping.subject.encode()
        _check(mapping.destinations)
        lossy = any(destination.subject == mapping.subject for destination in mapping.destinations)
        by_cluster: dict[str, list[Destination]] = {"": []}
        for destination in mapping.destinations:
            by_cluster.setdefault(destination.cluster, []).append(destination)
        weighted = {cluster: _weighted(self.source, those, lossy) for cluster, those in by_cluster.items()}
        self.usual = weighted.pop("")
        self.clusters = weighted


def _check(destinations: Sequence[Destination]) -> None:
    """Check several destinations together, as nats-server does."""
    seen: set[str] = set()
    weights: dict[str, int] = {}
    for destination in destinations:
        if destination.subject in seen:
            raise TransformError(f"duplicate entry for {quoted(destination.subject)}")
        seen.add(destination.subject)
        weights[destination.cluster] = weights.get(destination.cluster, 0) + destination.weight
        if weights[destination.cluster] > FULL:
            raise TransformError("total weight needs to be <= 100")


def _weighted(source: bytes, destinations: Sequence[Destination], lossy: bool) -> list[_Weighted]:
    """Return the destinations, lightest first. The rest to 100 stays with the source unless that is listed."""
    weighed = [(d.weight, d.subject, Transform(source, d.subject.encode())) for d in destinations]
    missing = FULL - sum(weight for weight, _, _ in weighed)
    if missing and (not lossy or not weighed):
        same = _tokenized(source)
        weighed.append((missing, same.decode(), Transform(source, same)))
    weighed.sort(key=lambda each: each[0])
    weighted, below = [], 0
    for weight, shown, transform in weighed:
        below += weight
        weighted.append(_Weighted(shown, transform, below))
    return weighted


def _tokenized(source: bytes) -> bytes:
    """Return the destination that maps every subject to itself."""
    tokens, number = source.split(b"."), 0
    for at, token in enumerate(tokens):
        if token == b"*":
            number += 1
            tokens[at] = b"$%d" % number
    return b".".join(tokens)


def hashed_mapping(mapping: SubjectMapping, account: str) -> SubjectMapping:
    """Replace `{{account-hash()}}` in a mapping of this account. Raises TransformError."""
    destinations = [replace(one, subject=hashed(one.subject, account=account)) for one in mapping.destinations]
    return SubjectMapping(hashed(mapping.subject, account=account), tuple(destinations))


class Mappings:
    """The mappings of one account.

    Args:
        mappings: as configured.
        cluster: the name of this server's cluster, "" for none.
        draw: returns a random number from 0 to 99.

    Raises:
        TransformError: an invalid mapping, with nats-server's text.
    """

    def __init__(
        self, mappings: Iterable[SubjectMapping], cluster: str = "", draw: Callable[[], int] | None = None
    ) -> None:
        self._mappings = [_Mapping(mapping) for mapping in mappings]
        self._draw = draw or _drawer()
        weighted = {each.source: each.clusters.get(cluster, each.usual) for each in self._mappings}
        self._literals = {source: those for source, those in weighted.items() if is_literal(source)}
        self._wild = [(source, those) for source, those in weighted.items() if not is_literal(source)]
        self._filters = SubjectFilters(source for source, _ in self._wild)

    def apply(self, subject: bytes) -> bytes:
        """Return the subject that a message is published to; b"" when it is dropped."""
        made = self.mapped(subject)
        return subject if made is None else made

    def mapped(self, subject: bytes) -> bytes | None:
        """Return the same as `apply`, but None when no mapping matches."""
        weighted = self._of(subject)
        if weighted is None:
            return None
        if len(weighted) == 1 and weighted[0].below == FULL:
            made = weighted[0].transform.made(subject)
        else:
            drawn = self._draw()
            made = next((each.transform.made(subject) for each in weighted if drawn < each.below), b"")
        return made if len(made) <= MAX_SUBJECT else None

    def fixed(self, subject: bytes) -> bool:
        """Return True if all messages to `subject` are published to the same subject."""
        weighted = self._of(subject)
        if weighted is None:
            return True
        return len(weighted) == 1 and weighted[0].below == FULL and not weighted[0].transform.varies

    def _of(self, subject: bytes) -> list[_Weighted] | None:
        """Return the destinations of a subject; None when no mapping matches."""
        weighted = self._literals.get(subject)
        if weighted is None and self._filters.match(subject):
            # In a published subject `>` is a literal token that no `*` matches, as in nats-server.
            weighted = next((those for source, those in self._wild if covers(source, subject)), None)
        return weighted

    def shown(self) -> dict[str, list[dict[str, Any]]]:
        """Return the mappings as /accountz shows them; weights are cumulative there."""
        return {
            mapping.source.decode(): [
                {"subject": each.shown, "weight": each.below} | ({"cluster": cluster} if cluster else {})
                for cluster, weighted in [("", mapping.usual), *mapping.clusters.items()]
                for each in weighted
            ]
            for mapping in sorted(self._mappings, key=lambda mapping: mapping.source)
        }


def _drawer() -> Callable[[], int]:
    rng = random.Random()
    return lambda: rng.randrange(FULL)
