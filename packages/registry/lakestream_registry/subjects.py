"""Subjects of the registry's API as names of schemas.

Belongs here: the mapping, which is one to one. Most subjects are names of schemas; in others each byte that a name
cannot have becomes `_xHH_`, its code in hexadecimal, and an `x` goes in front if nothing else may begin a name.

    orders-value        orders-value
    a b/c               a_x20_b_x2F_c
    .hidden             x_x2E_hidden

A subject of another context than the default one (`:.staging:orders`) is refused: an account has one set of ids.
Another context is another account.
"""

from __future__ import annotations

import re

from lakestream.schemas.errors import BadSchema
from lakestream.schemas.schema import check_name
from lakestream_registry.errors import bad_subject

DEFAULT_CONTEXT = ":.:"
_ESCAPED = re.compile(r"_x([0-9A-F]{2})_")
_TO_ESCAPE = re.compile(rb"_(?=x)|[^A-Za-z0-9_.-]|\.(?=\.|$)|^\.")


def name_of(subject: str) -> str:
    """Return the name of the schema for a subject.

    Raises:
        RegistryError: 42208, it is empty, too long or of another context.
    """
    subject = subject.removeprefix(DEFAULT_CONTEXT)
    if subject.startswith(":."):
        raise bad_subject(subject, "only the default context exists; use another account")
    if not subject:
        raise bad_subject(subject, "it is empty")
    raw = subject.encode(errors="surrogatepass")
    name = _escaped(raw).decode()
    if not name[0].isalnum() or name.startswith("x_x"):
        name = "x" + (b"_x%02X_" % raw[0] + _escaped(raw[1:])).decode()
    try:
        check_name(name)
    except BadSchema as error:
        raise bad_subject(subject, str(error)) from None
    return name


def _escaped(raw: bytes) -> bytes:
    return _TO_ESCAPE.sub(lambda found: b"_x%02X_" % found.group()[0], raw)


def subject_of(name: str) -> str:
    """Return the subject for the name of a schema."""
    if name.startswith("x_x"):
        name = name[1:]
    if "_x" not in name:
        return name
    parts = _ESCAPED.split(name)
    raw = b"".join(bytes([int(part, 16)]) if at % 2 else part.encode() for at, part in enumerate(parts))
    return raw.decode(errors="replace")
