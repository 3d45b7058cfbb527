"""One import's subjects: what is called one thing in the exporting account, and another in the importing one.

Belongs here: pure functions over subjects as raw bytes, with the refusals of nats-server 2.15. Who subscribes to them
is in stream_imports.py and service_imports.py.

Both sides are filters. A `*` in the importer's is the wildcard of the same number in the exporter's; `$n` (or
`{{wildcard(n)}}`) names another one. A `>` at the end stands for the same on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lakestream.protocol.transforms import TransformError

_PLACE = re.compile(rb"\$(\d+)|\{\{\s*[wW]ildcard\s*\(\s*(\d+)\s*\)\s*\}\}")
_MAX_PLACE = 9999


class ImportSubjects:
    """The two names of what is imported.

    Args:
        subject: as the exporter has it.
        to: as the importer has it; b"" for the same.
        constant: a subject without wildcards may be called by a filter: all that this selects becomes the subject.
            Services can be imported so; streams can not, there is no way back.

    Attributes:
        theirs: the exporter's filter.
        ours: the importer's filter.

    Raises:
        TransformError: these two do not make an import. The text is nats-server's, from its last colon on.
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
        """What the exporter's subject, or filter, is called here. `theirs` must cover it."""
        return subject if self._same else _made(self._to_ours, subject, self._tails[0])

    def to_theirs(self, subject: bytes) -> bytes:
        """What our subject, or filter, is called in the exporter's account. `ours` must cover it."""
        if self._same:
            return subject
        return self.theirs if self._constant else _made(self._to_theirs, subject, self._tails[1])


def prefixed(prefix: bytes, subject: bytes) -> bytes:
    """The importer's subject where the configuration gives a prefix, with or without its dot."""
    return b"%b.%b" % (prefix.rstrip(b"."), subject)


def _places(called: Sequence[bytes]) -> dict[int, int]:
    """Which wildcard of the exporter's (from 1) is at a token of the importer's subject."""
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
