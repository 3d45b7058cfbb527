"""Users of client certificates (`verify_and_map`).

Belongs here: which configured user a certificate stands for, in the order of nats-server. Certificates are read in
net/tls.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator

from lakestream.net.tls import DOMAIN_COMPONENT, PeerCertificate

Name = frozenset[tuple[str, str]]
"""A relative distinguished name: types in capital letters, and values."""

_HEX = re.compile(r"[0-9a-fA-F]{2}")


class _NoName(Exception):
    """Raised for a text that is no distinguished name."""


def user_of(certificate: PeerCertificate, users: Collection[str]) -> str | None:
    """Return the first of `users` that the certificate names; None when it names none of them.

    Its email addresses, host names and URIs come first, then its subject: as a distinguished name in any order, and as
    text. A part of the subject is not enough.
    """
    for text in (*certificate.emails, *certificate.names, *certificate.uris):
        if text in users:
            return text
    names = _subject(certificate)
    if names is not None:
        for user in users:
            if "=" in user and _same(user, names):
                return user
    return next((text for text in _texts(certificate) if text in users), None)


def _texts(certificate: PeerCertificate) -> Iterator[str]:
    text = certificate.known_subject
    if components := certificate.domain_components:
        yield ",".join((text, *(f"DC={value}" for value in components)))
    if text:
        yield text


def _subject(certificate: PeerCertificate) -> Counter[Name] | None:
    """Return the names of the subject; None where one of them has no short name, by which a user could give it."""
    names: Counter[Name] = Counter()
    for name in certificate.subject:
        known = frozenset(("DC" if kind == DOMAIN_COMPONENT else kind, value) for kind, value in name)
        if any(kind[0].isdigit() for kind, _ in known):
            return None
        names[known] += 1
    return names


def _same(user: str, names: Counter[Name]) -> bool:
    try:
        return Counter(_parsed(user)) == names
    except _NoName:
        return False


def _parsed(text: str) -> Iterator[Name]:
    """Split a distinguished name such as `CN=a,OU=b+L=c`; a backslash quotes one character, or two hexadecimal digits
    one byte. Raises _NoName."""
    pairs: list[tuple[str, str]] = []
    kind, value, blanks = "", bytearray(), 0
    in_value = False
    at = 0
    while at <= len(text):
        char = text[at : at + 1]
        at += 1
        if char in ("", ",", ";", "+"):
            if not in_value:
                raise _NoName
            pairs.append((kind.strip().upper(), value[: len(value) - blanks].decode("utf-8", "replace")))
            if char != "+":
                yield frozenset(pairs)
                pairs = []
            kind, value, blanks, in_value = "", bytearray(), 0, False
        elif not in_value:
            in_value = char == "="
            kind += "" if in_value else char
        elif char == "\\":
            blanks = 0
            if _HEX.match(text, at):
                value += bytes.fromhex(text[at : at + 2])
                at += 2
            else:
                value += text[at : at + 1].encode()
                at += 1
        elif char != " " or value:
            value += char.encode()
            blanks = blanks + 1 if char == " " else 0
