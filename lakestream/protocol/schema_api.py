"""Requests to the schema registry and their responses.

Belongs here: subjects, the bodies of requests, and the types of responses, on which the registry (packages/schemas) and
its clients (cli/schema) agree. docs/typed-tables.md describes them.

    $LAKE.API.SCHEMA.ADD.<name>       body: Definition. Register a version.
    $LAKE.API.SCHEMA.CHECK.<name>     body: Definition. The same without registering.
    $LAKE.API.SCHEMA.LIST             body: Page, or empty. Names with their versions.
    $LAKE.API.SCHEMA.GET.<name>       body: Lookup, or empty. `<name>` (the latest version), `<name>@3`, `<name>.3`.
    $LAKE.API.SCHEMA.DIFF.<name>      body: Versions, or empty. Differences of two versions.
    $LAKE.API.SCHEMA.DELETE.<name>    body: Deletion, or empty.

The response is one JSON object with `type`, and `error` if the request failed, as in the JetStream API.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PREFIX = "$LAKE.API.SCHEMA."
TYPE_PREFIX = "io.lakestream.api.v1."
MAX_BODY = 1 << 20
"""Maximum size of a request, in bytes (1 MiB)."""
LIST_LIMIT = 256
"""Schemas in one response of LIST."""
DEFAULT_COMPATIBILITY: Final = "backward"
"""Compatibility of the first version, if the request names none."""


class Definition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ADD and CHECK.

    Attributes: `compatibility`: rule for this version, "" for that of the latest version; `dry_run`: ADD registers
    nothing.
    """

    format: Literal["json", "avro", "protobuf"]
    text: str
    message: str = ""
    compatibility: Literal[
        "", "none", "backward", "forward", "full", "backward_transitive", "forward_transitive", "full_transitive"
    ] = ""
    dry_run: bool = False


class ListPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of LIST: number of schemas to leave out."""

    offset: int = 0


class Lookup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of GET. `check`: fail if the schema cannot be used."""

    check: bool = False


class Versions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of DIFF: two versions; 0: `new` is the latest, `old` the one before `new`."""

    old: int = 0
    new: int = 0


class SchemaDeletion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of DELETE. `force`: delete a schema that streams name."""

    force: bool = False
