"""The check of a stream's `lakestream.schema` and `lakestream.validate`, when it is created or updated.

Belongs here: the grammar of both, and the question to the registry whether the schemas that a stream names can be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lakestream.account.schemas.calls import CallUnanswered, ask
from lakestream.ports import Bus, Clock
from lakestream.protocol.api.errors import ApiError, api_error, invalid
from lakestream.protocol.decoding import JsonDecoder
from lakestream.protocol.schema_api import PREFIX, Lookup
from lakestream.schemas import naming
from lakestream.schemas.errors import BadSchema
from lakestream.schemas.naming import OFF, SCHEMA_KEY, VALIDATE_KEY, VALIDATIONS
from lakestream.schemas.schema import Reference

_BODY = msgspec.json.encode(Lookup(check=True))


class _Answer(msgspec.Struct, frozen=True):
    error: dict[str, Any] | None = None


_ANSWER = JsonDecoder(_Answer)


def concerns(metadata: Mapping[str, str]) -> bool:
    """Return True if there is something to check."""
    return SCHEMA_KEY in metadata or VALIDATE_KEY in metadata


def references(metadata: Mapping[str, str], is_mirror: bool) -> tuple[Reference, ...]:
    """Return the schemas that a stream's metadata names.

    Raises:
        ApiError: 10052, a value is outside of its grammar.
    """
    mode, rules = metadata.get(VALIDATE_KEY, OFF), metadata.get(SCHEMA_KEY)
    if mode not in VALIDATIONS:
        raise invalid(f"{VALIDATE_KEY}: {mode[:40]!r} is not one of {', '.join(VALIDATIONS)}")
    if mode != OFF and rules is None:
        raise invalid(f"{VALIDATE_KEY}: needs {SCHEMA_KEY}, which names the schemas of messages")
    if mode != OFF and is_mirror:
        raise invalid(f"{VALIDATE_KEY}: a mirror holds what its origin holds; validate there")
    try:
        return naming.parse(rules).references() if rules is not None else ()
    except BadSchema as error:
        raise invalid(f"{SCHEMA_KEY}: {error}") from None


async def check(
    bus: Bus, clock: Clock, metadata: Mapping[str, str], before: Mapping[str, str], is_mirror: bool
) -> None:
    """Check the metadata of a stream that is created or updated.

    Args:
        before: of the existing stream; schemas that it names are not looked up again.

    Raises:
        ApiError: a value is wrong (10052), or a schema is unknown (20001), unusable (20002), or cannot be looked up
            now (20005).
    """
    wanted = references(metadata, is_mirror)
    try:
        known = references(before, False)
    except ApiError:
        known = ()
    for reference in wanted:
        if reference in known:
            continue
        try:
            answer = _ANSWER.decode(await ask(bus, clock, f"{PREFIX}GET.{reference}".encode(), _BODY))
        except CallUnanswered as error:
            raise api_error(20005, err=f"{reference} cannot be looked up: {error}") from None
        if answer.error is not None:
            said = answer.error
            raise ApiError(said.get("code", 500), said.get("err_code", 0), f"{SCHEMA_KEY}: {said.get('description')}")
