"""AWS Glue Data Catalogs, and services with the same API.

Belongs here: the requests to Glue, by boto3, and the layout of an entry there, which Athena, Spark and Trino read.
Credentials are those of the environment or the instance, as with all AWS tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from lakestream.lake.catalogs.address import DELTA, CatalogAddress
from lakestream_catalogs.catalog import REQUEST_SECONDS, Catalog, CatalogAway, CatalogRefused
from lakestream_catalogs.entries import POINTER_PROPERTY, CatalogEntry, CatalogField, Table, cut
from lakestream_catalogs.types import hive_fields

MAX_COMMENT = 255
MAX_DESCRIPTION = 2048
"""Maximum lengths of the comment of a column and of a table in Glue."""
INPUT_FORMAT = "org.apache.hadoop.mapred.SequenceFileInputFormat"
OUTPUT_FORMAT = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"
SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
_DELTA = {
    "EXTERNAL": "TRUE",
    "classification": "delta",  # Glue's own jobs
    "spark.sql.sources.provider": "delta",  # Spark, Trino
    "table_type": "DELTA",  # Athena
}
_ICEBERG = {"EXTERNAL": "TRUE", "table_type": "ICEBERG"}
_TRIES = 2
_GENERAL = frozenset(
    (
        "AccessDeniedException",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "ThrottlingException",
        "UnrecognizedClientException",
    )
)
"""Errors that every request would get."""


class GlueCatalog(Catalog):
    """A Glue Data Catalog.

    Args:
        address: its address.
    """

    def __init__(self, address: CatalogAddress) -> None:
        self._address, self._format = str(address), address.format
        self._scope = {"CatalogId": address.catalog} if address.catalog else {}
        limits = Config(
            connect_timeout=REQUEST_SECONDS,
            read_timeout=REQUEST_SECONDS,
            retries={"total_max_attempts": _TRIES, "mode": "standard"},
        )
        with self._errors("begin"):
            self._client: Any = boto3.client(
                "glue", region_name=address.hosts[0], endpoint_url=address.endpoint or None, config=limits
            )

    def databases(self) -> list[str]:
        """Return the names of all databases."""
        with self._errors("list databases"):
            return [each["Name"] for each in self._all("get_databases", "DatabaseList")]

    def create_database(self, database: str, comment: str) -> None:
        """Create a database, unless it exists."""
        with self._errors(f"create database {database}"), suppress(self._client.exceptions.AlreadyExistsException):
            made = {"Name": database, "Description": comment}
            self._client.create_database(DatabaseInput=made, **self._scope)

    def entries(self, database: str) -> list[CatalogEntry]:
        """Return all entries of a database."""
        with self._errors(f"list database {database}"):
            return [_entry(each) for each in self._all("get_tables", "TableList", DatabaseName=database)]

    def entry(self, database: str, name: str) -> CatalogEntry | None:
        """Return one entry; None if it is gone."""
        with (
            self._errors(f"read {database}.{name}"),
            suppress(self._client.exceptions.EntityNotFoundException),
        ):
            return _entry(self._client.get_table(DatabaseName=database, Name=name, **self._scope)["Table"])
        return None

    def render(self, table: Table, name: str) -> CatalogEntry:
        """Return the entry that a table should have."""
        location = f"file:{table.path}" if "://" not in table.path else table.path
        comment, columns = cut(table.comment, MAX_DESCRIPTION), hive_fields(table.columns, MAX_COMMENT)
        shown = _DELTA if self._format == DELTA else {**_ICEBERG, POINTER_PROPERTY: table.pointer}
        return CatalogEntry(name, location, comment, columns, {**shown, **table.properties})

    def create(self, database: str, entry: CatalogEntry, table: Table) -> None:
        """Create an entry."""
        with self._errors(f"create {database}.{entry.name}"):
            self._client.create_table(DatabaseName=database, TableInput=_input(entry), **self._scope)

    def alter(self, database: str, entry: CatalogEntry, table: Table) -> None:
        """Change an entry. Glue keeps no version of the old one."""
        with self._errors(f"alter {database}.{entry.name}"):
            changed = _input(entry)
            self._client.update_table(DatabaseName=database, TableInput=changed, SkipArchive=True, **self._scope)

    def drop(self, database: str, name: str) -> None:
        """Drop an entry, unless it is gone."""
        with (
            self._errors(f"drop {database}.{name}"),
            suppress(self._client.exceptions.EntityNotFoundException),
        ):
            self._client.delete_table(DatabaseName=database, Name=name, **self._scope)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def _all(self, operation: str, key: str, **arguments: str) -> Iterator[dict[str, Any]]:
        for page in self._client.get_paginator(operation).paginate(**arguments, **self._scope):
            yield from page[key]

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            message = error.response.get("Error", {}).get("Message", "") or code
            if code in _GENERAL:
                remedy = "look at the credentials, the region, and their rights to glue:*Table, *Tables, *Database(s)"
                raise CatalogAway(self._address, f"{code}: {message}", remedy) from None
            raise CatalogRefused(self._address, what, f"{code}: {message}") from None
        except (BotoCoreError, OSError, ValueError) as error:
            remedy = "look at the region, the credentials in the environment, and the way to it"
            raise CatalogAway(self._address, str(error).splitlines()[0], remedy) from None


def _entry(table: dict[str, Any]) -> CatalogEntry:
    descriptor = table.get("StorageDescriptor") or {}
    serde = descriptor.get("SerdeInfo") or {}
    location = (serde.get("Parameters") or {}).get("path") or descriptor.get("Location") or ""
    columns = [*descriptor.get("Columns", ()), *table.get("PartitionKeys", ())]
    fields = tuple(CatalogField(each["Name"], each.get("Type", ""), each.get("Comment", "")) for each in columns)
    return CatalogEntry(
        table["Name"], location, table.get("Description", ""), fields, dict(table.get("Parameters") or {})
    )


def _input(entry: CatalogEntry) -> dict[str, Any]:
    columns = [{"Name": each.name, "Type": each.type, "Comment": each.comment} for each in entry.columns or ()]
    return {
        "Name": entry.name,
        "Description": entry.comment,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": entry.properties,
        "PartitionKeys": [],
        "StorageDescriptor": {
            "Columns": columns,
            "Location": entry.location,
            "InputFormat": INPUT_FORMAT,
            "OutputFormat": OUTPUT_FORMAT,
            "SerdeInfo": {
                "SerializationLibrary": SERDE,
                "Parameters": {"path": entry.location, "serialization.format": "1"},
            },
        },
    }
