"""Topics of MQTT as subjects of NATS, and back.

Belongs here: nats-server's rules, without which a NATS client and a device would not find each other.

    topic      subject     why
    a/b        a.b         levels are tokens
    /a         /.a         a token may not be empty: an empty level is a token `/` or has one at its side
    a/         a./
    a//b       a./.b
    a.b        a//b        a dot within a level
    +/a/#      *.a.>       wildcards of filters
"""

from __future__ import annotations

import re

_SPECIAL = re.compile(rb"^/|/$|//|[.+# \t\n\r\f\x7f]")
_FORBIDDEN = frozenset(b" \t\n\r\f\x7f")
_SLASH, _DOT, _PLUS, _HASH = b"/.+#"
_BACK = {b"//": b".", b"/.": b"/", b"/": b"", b".": b"/"}
_back = re.compile(rb"//|/\.|/|\.").sub


class BadTopic(ValueError):
    """Raised for a topic that has no subject."""


def subject_of(topic: bytes, *, wildcards: bool = False) -> bytes:
    """Return the subject of a topic, or of a topic filter. Raises BadTopic."""
    if not _SPECIAL.search(topic):
        return topic.replace(b"/", b".")
    found, last = bytearray(), len(topic) - 1
    for at, byte in enumerate(topic):
        if byte == _SLASH:
            if not at or found[-1] == _DOT:
                found += b"/."
            elif at == last or topic[at + 1] == _SLASH:
                found += b"./"
            else:
                found.append(_DOT)
        elif byte in _FORBIDDEN:
            raise BadTopic("character not supported for MQTT topics")
        elif byte == _DOT:
            found += b"//"
        elif byte in (_PLUS, _HASH):
            _check_wildcard(topic, at, wildcards)
            found += b"*" if byte == _PLUS else b">"
        else:
            found.append(byte)
    if found[-1] == _DOT:
        found.append(_SLASH)
    return bytes(found)


def _check_wildcard(topic: bytes, at: int, wildcards: bool) -> None:
    if not wildcards:
        raise BadTopic("wildcards not allowed in publish's topic")
    alone = topic[at - 1 : at] in (b"", b"/") and topic[at + 1 : at + 2] in (b"", b"/")
    if not alone or (topic[at] == _HASH and at + 1 < len(topic)):
        raise BadTopic("a wildcard must be a whole level, and # the last one")


def topic_of(subject: bytes) -> bytes:
    """Return the topic of a subject."""
    if b"/" not in subject:
        return subject.replace(b".", b"/")
    return _back(lambda found: _BACK[found[0]], subject)


def level_above(subject: bytes) -> bytes:
    """Return the subject that a filter with # at its end matches besides what is below: `a` of `a.>`; b"": none."""
    return subject[:-2] if len(subject) > 2 and subject.endswith(b".>") else b""


def is_kept_from(filter_subject: bytes, subject: bytes) -> bool:
    """Return True if a filter that begins with a wildcard must not match a topic that begins with `$`."""
    return subject.startswith(b"$") and (filter_subject in (b"*", b">") or filter_subject.startswith(b"*."))
