"""Catalog entries by a Spark session.

Belongs here: the catalog of a session (a Hive metastore, or another one) behind the interface of lake/catalogs/, and
registering the tables of one account there. Spark reads columns from the tables' logs, so these entries have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lakestream.lake.catalogs.keeper import ALTER, CREATE, DROP
from lakestream.lake.storage import paths
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.schema import quoted, ticked
from lakestream_catalogs.catalog import Catalog
from lakestream_catalogs.entries import CatalogEntry, Table, own
from lakestream_catalogs.plan import plan
from lakestream_catalogs.tables import LakeTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class MetastoreEntry(msgspec.Struct, frozen=True):
    """A table in the catalog: stream, name in the catalog, and location as Spark spells it."""

    stream: str
    name: str
    location: str


def register(
    spark: SparkSession, lake: str, database: str = "default", account: str = paths.DEFAULT_ACCOUNT
) -> list[MetastoreEntry]:
    """Create an entry in a database of the session's catalog for each table of an account, and drop the entries of
    tables that are gone.

    Names and rules are those of all catalogs: the entry of stream ORDERS is `orders`, and only entries that this
    function has made are changed. Call it again when streams were created or deleted.

    Raises:
        UnsupportedLake: the lake's address.
        NotALake: there is no lake.
    """
    catalog = SessionCatalog(spark, lake)
    catalog.create_database(database, "")
    found = LakeTables(lake).read()
    tables = [table for table in found.tables if table.account == account]
    done = []
    for change in plan(tables, catalog.entries(database), found.lake, catalog.render, found.unread):
        if change.kind == DROP:
            catalog.drop(database, change.entry.name)
            continue
        assert change.table is not None
        if change.kind == CREATE:
            catalog.create(database, change.entry, change.table)
        elif change.kind == ALTER:
            catalog.alter(database, change.entry, change.table)
        if change.entry.name:
            done.append(MetastoreEntry(change.table.stream, change.entry.name, catalog.location(change.table)))
    return done


class SessionCatalog(Catalog):
    """The catalog `spark_catalog` of a session.

    Args:
        spark: the session.
        lake: the lake's root.
    """

    def __init__(self, spark: SparkSession, lake: str) -> None:
        self._spark = spark
        self._storage = open_storage(lake)

    def databases(self) -> list[str]:
        """Return the names of all databases."""
        return [each.name for each in self._spark.catalog.listDatabases()]

    def create_database(self, database: str, comment: str) -> None:
        """Create a database, unless it exists."""
        self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {ticked(database)}")

    def entries(self, database: str) -> list[CatalogEntry]:
        """Return all entries of a database, from the catalog alone: the data may be gone."""
        names = self._external.listTables(database)
        found = []
        for number in range(names.size()):
            table = self._external.getTable(database, names.apply(number))
            location = table.storage().locationUri()
            where = location.get().toString() if location.isDefined() else ""
            found.append(CatalogEntry(names.apply(number), where, properties=self._properties(table)))
        return found

    def render(self, table: Table, name: str) -> CatalogEntry:
        """Return the entry that a table should have."""
        return CatalogEntry(name, self.location(table), properties=dict(table.properties))

    def location(self, table: Table) -> str:
        """Return the location of a table as Spark spells it."""
        return self._storage.spark_path(table.path)

    def create(self, database: str, entry: CatalogEntry, table: Table) -> None:
        """Create an entry, then its properties: Spark compares those of CREATE TABLE with the table's own."""
        name = f"{ticked(database)}.{ticked(entry.name)}"
        self._spark.sql(f"CREATE TABLE {name} USING delta LOCATION {quoted(entry.location)}")
        self._mark(database, entry)

    def alter(self, database: str, entry: CatalogEntry, table: Table) -> None:
        """Replace an entry."""
        self.drop(database, entry.name)
        self.create(database, entry, table)

    def drop(self, database: str, name: str) -> None:
        """Drop an entry, unless it is gone."""
        self._spark.sql(f"DROP TABLE IF EXISTS {ticked(database)}.{ticked(name)}")

    def close(self) -> None:
        """Do nothing: the session is the caller's."""

    @property
    def _external(self) -> Any:
        return self._spark._jsparkSession.sessionState().catalog().externalCatalog()

    def _properties(self, table: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        pairs = table.properties().iterator()
        while pairs.hasNext():
            pair = pairs.next()
            found[pair._1()] = pair._2()
        return own(found)

    def _mark(self, database: str, entry: CatalogEntry) -> None:
        """Set the properties of an entry, and nothing in the table."""
        table = self._external.getTable(database, entry.name)
        properties = table.properties()
        for name, value in entry.properties.items():
            properties = properties.updated(name, value)
        fields = {
            table.productElementName(number): table.productElement(number) for number in range(table.productArity())
        }
        self._external.alterTable(table.copy(*{**fields, "properties": properties}.values()))
