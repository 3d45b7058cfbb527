"""Addresses of catalogs.

Belongs here: their spelling as URLs, in nats.conf, in flags and in `LAKESTREAM_CATALOGS`. No catalog is contacted.

    hive://HOST[:PORT][,HOST[:PORT]…][/DATABASE]           Hive metastore (Thrift)
    glue://REGION[/DATABASE][?catalog_id=ID][&endpoint=URL]     AWS Glue Data Catalog
    unity://HOST[:PORT]/CATALOG[/SCHEMA][?token_file=PATH]      Unity Catalog over HTTPS; unity+http:// over HTTP
    iceberg://HOST[:PORT][/PATH][?namespace=DATABASE][&warehouse=W][&token_file=PATH]
                                                            Iceberg REST catalog over HTTPS; iceberg+http:// over HTTP

`format=iceberg` at a Hive metastore or Glue registers the Iceberg tables instead of the Delta tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from lakestream.lake.errors import LakeError

DEFAULT_DATABASE = "lakestream"
HIVE_PORT = 9083
MAX_CATALOGS = 8
"""Maximum number of catalogs to which one lake is published."""
VARIABLE = "LAKESTREAM_CATALOGS"
"""Environment variable with addresses, separated by blanks, for programs that get none on the command line."""

_NAME = re.compile(r"[a-z0-9_]{1,64}")
_CATALOG = re.compile(r"[A-Za-z0-9_-]{1,255}")
_SEGMENT = re.compile(r"[A-Za-z0-9._~%-]{1,255}")
_REGION = re.compile(r"[a-z0-9-]{1,32}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
DELTA, ICEBERG = FORMATS = ("delta", "iceberg")
_REST_OPTIONS = ("namespace", "warehouse", "token_file")
_OPTIONS = {
    "hive": ("format",),
    "glue": ("catalog_id", "endpoint", "format"),
    "unity": ("token_file",),
    "unity+http": ("token_file",),
    "iceberg": _REST_OPTIONS,
    "iceberg+http": _REST_OPTIONS,
}


class BadCatalog(LakeError):
    """Raised for an address that no catalog has."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            f"catalog {address!r}: {reason}. Addresses are hive://HOST:9083/DATABASE, glue://REGION/DATABASE, "
            "unity://HOST/CATALOG/SCHEMA and iceberg://HOST/PATH"
        )


class CatalogAddress(msgspec.Struct, frozen=True):
    """Address of a catalog. `hosts` has `host:port` of each server, or the region. `database`: of the default account.

    `catalog` is Unity's catalog, the id of Glue's, or the warehouse of a REST catalog. `endpoint` is Glue's URL, if it
    is not Amazon's own. `format`: of the tables that are registered. `path`: of a REST catalog, before `/v1`.
    """

    text: str
    kind: str
    hosts: tuple[str, ...]
    database: str = DEFAULT_DATABASE
    catalog: str = ""
    endpoint: str = ""
    token_file: str = ""
    secure: bool = True
    format: str = DELTA
    path: str = ""

    def __str__(self) -> str:
        """Return it as it was written."""
        return self.text


def parse(text: str) -> CatalogAddress:
    """Parse an address.

    Raises:
        BadCatalog: it is of an unknown kind, incomplete, or has credentials.
    """
    if "@" in text.partition("?")[0]:
        raise BadCatalog(text.partition("://")[0] + "://…", "credentials belong in the environment or a file")
    try:
        parts = urlsplit(text)
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise BadCatalog(text, str(error)) from None
    if parts.scheme not in _OPTIONS or parts.fragment:
        raise BadCatalog(text, f"{parts.scheme or text!r} is not a kind of catalog")
    options = dict(given)
    if len(options) < len(given) or options.keys() - set(_OPTIONS[parts.scheme]) or not all(options.values()):
        allowed = " and ".join(_OPTIONS[parts.scheme]) or "none"
        raise BadCatalog(text, f"its options may be {allowed}, each once and with a value")
    names = [name for name in parts.path.split("/") if name]
    if options.get("format", DELTA) not in FORMATS:
        raise BadCatalog(text, f"its format may be {' or '.join(FORMATS)}")
    kind = parts.scheme.partition("+")[0]
    return {"hive": _hive, "glue": _glue, "unity": _unity, "iceberg": _rest}[kind](text, parts, names, options)


def parse_all(texts: Sequence[str]) -> tuple[CatalogAddress, ...]:
    """Parse several addresses.

    Raises:
        BadCatalog: one is wrong, two are equal, or there are more than `MAX_CATALOGS`.
    """
    found = tuple(map(parse, texts))
    for number, each in enumerate(found):
        if each.text in texts[:number]:
            raise BadCatalog(each.text, "it is given twice")
    if len(found) > MAX_CATALOGS:
        raise BadCatalog(found[MAX_CATALOGS].text, f"a lake is published to at most {MAX_CATALOGS} catalogs")
    return found


def given(texts: Sequence[str], environ: Mapping[str, str]) -> tuple[CatalogAddress, ...]:
    """Parse the addresses of a command line; without any, those of `VARIABLE`. Errors: see `parse_all`."""
    return parse_all(list(texts) or environ.get(VARIABLE, "").split())


def _hive(text: str, parts: SplitResult, names: list[str], options: dict[str, str]) -> CatalogAddress:
    hosts = []
    for each in parts.netloc.split(","):
        match = _HOST.fullmatch(each)
        if match is None:
            raise BadCatalog(text, f"{each!r} is not a host")
        hosts.append(each if match[2] else f"{each}:{HIVE_PORT}")
    form = options.get("format", DELTA)
    return CatalogAddress(text, "hive", tuple(hosts), _database(text, names), format=form)


def _glue(text: str, parts: SplitResult, names: list[str], options: dict[str, str]) -> CatalogAddress:
    if not _REGION.fullmatch(parts.netloc):
        raise BadCatalog(text, f"{parts.netloc!r} is not a region")
    endpoint = options.get("endpoint", "")
    if endpoint and ("@" in endpoint or urlsplit(endpoint).scheme not in ("http", "https")):
        raise BadCatalog(text, "its endpoint is not an http:// or https:// URL without credentials")
    database, account = _database(text, names), options.get("catalog_id", "")
    form = options.get("format", DELTA)
    return CatalogAddress(text, "glue", (parts.netloc,), database, account, endpoint, format=form)


def _unity(text: str, parts: SplitResult, names: list[str], options: dict[str, str]) -> CatalogAddress:
    if not _HOST.fullmatch(parts.netloc):
        raise BadCatalog(text, f"{parts.netloc!r} is not a host")
    if not names or not _CATALOG.fullmatch(names[0]):
        raise BadCatalog(text, "the name of the catalog is missing or wrong")
    secure = parts.scheme == "unity"
    database, file = _database(text, names[1:]), options.get("token_file", "")
    return CatalogAddress(text, "unity", (parts.netloc,), database, names[0], token_file=file, secure=secure)


def _rest(text: str, parts: SplitResult, names: list[str], options: dict[str, str]) -> CatalogAddress:
    if not _HOST.fullmatch(parts.netloc):
        raise BadCatalog(text, f"{parts.netloc!r} is not a host")
    if not all(map(_SEGMENT.fullmatch, names)) or names[-1:] == ["v1"]:
        raise BadCatalog(text, "its path is that of the catalog before /v1, such as /api/catalog")
    database = _database(text, [options["namespace"]] if "namespace" in options else [])
    path = "".join(f"/{name}" for name in names)
    return CatalogAddress(
        text,
        "iceberg",
        (parts.netloc,),
        database,
        options.get("warehouse", ""),
        token_file=options.get("token_file", ""),
        secure=parts.scheme == "iceberg",
        format=ICEBERG,
        path=path,
    )


def _database(text: str, names: list[str]) -> str:
    if len(names) > 1 or (names and not _NAME.fullmatch(names[0])):
        raise BadCatalog(text, "its database name must consist of lower-case letters, digits and _ (at most 64)")
    return names[0] if names else DEFAULT_DATABASE
