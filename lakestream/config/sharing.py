"""Exports and imports of accounts.

Belongs here: the exports that cover a subject and give it to an importer, and the two names of an imported subject,
with the errors of nats-server 2.15. Checks across accounts are in account_checks.py; messages cross in net/accounts.

Both names of an import are filters. A `*` in the importer's is the wildcard of the same number in the exporter's; `$n`
(or `{{wildcard(n)}}`) names another one. A `>` at the end stands for the same on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from lakestream.config.account_options import (
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
)
from lakestream.protocol.subjects import covers, valid_subject
from lakestream.protocol.transforms import TransformError, hashed

Export = StreamExport | ServiceExport
Import = StreamImport | ServiceImport
E = TypeVar("E", StreamExport, ServiceExport, StreamExport | ServiceExport)

_CALL = re.compile(rb"\{\{.*\}\}")
_WILDCARD = re.compile(rb"\{\{\s*[wW]ildcard\s*\(.*\)\s*\}\}")
_PLACE = re.compile(rb"\$(\d+)|\{\{\s*[wW]ildcard\s*\(\s*(\d+)\s*\)\s*\}\}")
_MAX_PLACE = 9999


Entry = TypeVar("Entry", bound=Export | Import)


def hashed_entry(entry: Entry, account: str) -> Entry:
    """Replace the functions that stand for an account in an export or import of this one. Raises TransformError."""
    exporter = entry.account if isinstance(entry, StreamImport | ServiceImport) else ""
    names = [name for name in ("subject", "to", "prefix") if "{{" in getattr(entry, name, "")]
    return replace(entry, **{name: hashed(getattr(entry, name), account=account, exporter=exporter) for name in names})


class ExportIndex(Generic[E]):
    """The exports of one kind of one account. Their subjects must be valid."""

    def __init__(self, exports: Iterable[E]) -> None:
        # A node is a dict by token; b"" has the exports that end there.
        self._root: dict[bytes, Any] = {}
        for export in exports:
            node = self._root
            for token in export.subject.encode().split(b"."):
                node = node.setdefault(token, {})
            node.setdefault(b"", []).append(export)

    def narrowest(self, subject: bytes) -> list[E]:
        """Return the exports that cover a valid filter, without those that are wider than another one which does."""
        found = self._covering(subject)
        subjects = {export.subject.encode() for export in found}
        wider = {one for one in subjects if any(one != other and covers(one, other) for other in subjects)}
        return [export for export in found if export.subject.encode() not in wider]

    def _covering(self, subject: bytes) -> list[E]:
        found: list[E] = []
        nodes = [self._root]
        for token in subject.split(b"."):
            for node in nodes:
                found += node.get(b">", {}).get(b"", ())
            if token == b">":
                return found
            nodes = [node[name] for node in nodes for name in {token, b"*"} if name in node]
        for node in nodes:
            found += node.get(b"", ())
        return found


def approves(export: Export, importer: str, subject: bytes, issued_s: int | None = None) -> bool:
    """Return True if an export that covers a subject allows the importer to import it.

    Args:
        issued_s: time of the importer's activation token in s since the epoch; None: it has none that is valid.
    """
    if export.token_position:
        tokens = subject.split(b".")
        return export.token_position <= len(tokens) and tokens[export.token_position - 1] == importer.encode()
    if export.activated:
        revoked = dict(export.revoked)
        return issued_s is not None and issued_s > max(revoked.get(importer, -1), revoked.get("*", -1))
    return export.accounts is None or importer in export.accounts


class ImportSubjects:
    """The two names of an import.

    Args:
        subject: as exported.
        to: as imported; b"" for the same.
        constant: a subject without wildcards may be imported under a filter: every matching subject becomes it.
            Possible for services, not for streams, which have no way back.

    Attributes:
        theirs: the exporter's filter.
        ours: the importer's filter.

    Raises:
        TransformError: an invalid import, with the last part of nats-server's text.
    """

    def __init__(self, subject: bytes, to: bytes = b"", *, constant: bool = False) -> None:
        self.theirs = subject
        tokens, called = subject.split(b"."), (to or subject).split(b".")
        wild = [at for at, token in enumerate(tokens) if token == b"*"]
        rest = tokens[-1] == b">"
        places = _places(called)
        self.ours = b".".join([b"*" if at in places else token for at, token in enumerate(called)])
        self._constant = constant and not wild and not rest
        self._same = self.ours == subject and list(places.values()) == list(range(1, len(places) + 1))
        if self._constant:
            return
        if rest is not (called[-1] == b">"):
            raise TransformError("invalid subject")
        for at, place in places.items():
            if not 0 < place <= len(wild):
                shown = f"${place}" if called[at] == b"*" else called[at].decode("utf-8", "replace")
                raise TransformError(f"invalid mapping destination: wildcard index out of range in {shown}: [{place}]")
        if set(places.values()) != set(range(1, len(wild) + 1)):
            numbered = [b"$%d" % places[at] if token == b"*" else token for at, token in enumerate(called)]
            text = b".".join(numbered).decode("utf-8", "replace")
            raise TransformError(f"invalid mapping destination: not using all of the token wildcard(s) in {text}")
        where = {place: at for at, place in places.items()}
        self._to_ours = [wild[places[at] - 1] if at in places else token for at, token in enumerate(called)]
        self._to_theirs = [where[wild.index(at) + 1] if token == b"*" else token for at, token in enumerate(tokens)]
        if rest:
            self._to_ours.pop()
            self._to_theirs.pop()
        self._tails = (len(tokens) - 1, len(called) - 1) if rest else (-1, -1)

    def to_ours(self, subject: bytes) -> bytes:
        """Return the importer's name of a subject or filter of the exporter. `theirs` must cover it."""
        return subject if self._same else _made(self._to_ours, subject, self._tails[0])

    def to_theirs(self, subject: bytes) -> bytes:
        """Return the exporter's name of a subject or filter of the importer. `ours` must cover it."""
        if self._same:
            return subject
        return self.theirs if self._constant else _made(self._to_theirs, subject, self._tails[1])


def _places(called: Sequence[bytes]) -> dict[int, int]:
    """Return, by token of the importer's subject, which wildcard of the exporter's (from 1) it takes."""
    places: dict[int, int] = {}
    stars = 0
    for at, token in enumerate(called):
        named = _PLACE.fullmatch(token)
        if token == b"*":
            stars += 1
            places[at] = stars
        elif named is not None:
            places[at] = min(int((named[1] or named[2])[:6]), _MAX_PLACE)
    return places


def _made(makers: Sequence[int | bytes], subject: bytes, tail: int) -> bytes:
    tokens = subject.split(b".")
    made = [tokens[maker] if isinstance(maker, int) else maker for maker in makers]
    if tail >= 0:
        made += tokens[tail:]
    return b".".join(made)


def local_subject(wanted: Import) -> bytes:
    """Return the importer's name of an import."""
    if isinstance(wanted, StreamImport) and wanted.prefix:
        return f"{wanted.prefix.rstrip('.')}.{wanted.subject}".encode()
    return (wanted.to or wanted.subject).encode()


def subjects_of(wanted: Import) -> ImportSubjects:
    """Return both names of an import.

    Raises:
        ValueError: an invalid import; TransformError when one name cannot become the other.
    """
    if isinstance(wanted, StreamImport) and wanted.prefix:
        tokens = wanted.prefix.split(".")
        if "*" in tokens or ">" in tokens:
            raise ValueError("stream import prefix can not contain wildcard tokens")
    local = local_subject(wanted)
    for token in local.split(b"."):
        if _CALL.fullmatch(token) and not _WILDCARD.fullmatch(token):
            raise TransformError(
                "invalid mapping destination: the only mapping function allowed for import transforms is "
                f"{{{{Wildcard()}}}} in {token.decode()}"
            )
    subjects = ImportSubjects(wanted.subject.encode(), local, constant=isinstance(wanted, ServiceImport))
    if not valid_subject(subjects.ours):
        raise TransformError("invalid subject")
    return subjects
