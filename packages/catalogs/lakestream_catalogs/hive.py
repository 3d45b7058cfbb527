"""Hive metastores, over Thrift.

Belongs here: the requests to a metastore, and the layout of an entry there. Spark and Trino find the provider among the
properties of the table, and the location among those of the SerDe; other readers use the location of the storage. The
columns are for people, and for tools that show them: engines read the table's log.

Metastores with Kerberos or TLS are not supported. The requests are those of Hive 2.3, with which they are tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pymetastore.hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException

from lakestream.lake.catalogs.address import ICEBERG, CatalogAddress
from lakestream.lake.storage.clouds.known import cloud_of
from lakestream_catalogs.catalog import REQUEST_SECONDS, Catalog, CatalogAway, CatalogRefused
from lakestream_catalogs.entries import POINTER_PROPERTY, CatalogEntry, CatalogField, Table, cut, own
from lakestream_catalogs.types import hive_fields

MAX_COMMENT = 255
"""Maximum length of a column's comment; a metastore keeps 256 characters."""
MAX_DESCRIPTION = 2000
BATCH = 100
"""Number of entries in one answer."""

PROVIDER = "spark.sql.sources.provider"
INPUT_FORMAT = "org.apache.hadoop.mapred.SequenceFileInputFormat"
OUTPUT_FORMAT = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"
SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
"""Formats of a table that Hive itself does not read, as Spark states them."""
# Without these Hive would list the table's files at each change.
_NO_STATISTICS = {"DO_NOT_UPDATE_STATS": "true"}


class HiveCatalog(Catalog):
    """A Hive metastore. The first host that answers is used.

    Args:
        address: its address.

    Raises:
        CatalogAway: no host answers.
    """

    def __init__(self, address: CatalogAddress) -> None:
        self._address, self._format = str(address), address.format
        self._transport, self._client = _connected(address)

    def databases(self) -> list[str]:
        """Return the names of all databases."""
        with self._errors("list databases"):
            return list(self._client.get_all_databases())

    def create_database(self, database: str, comment: str) -> None:
        """Create a database, unless it exists. The metastore decides on its location."""
        with self._errors(f"create database {database}"), suppress(ttypes.AlreadyExistsException):
            self._client.create_database(ttypes.Database(database, comment, None, {}))

    def entries(self, database: str) -> list[CatalogEntry]:
        """Return all entries of a database."""
        with self._errors(f"list database {database}"):
            names = self._client.get_all_tables(database)
            found: list[CatalogEntry] = []
            for first in range(0, len(names), BATCH):
                tables = self._client.get_table_objects_by_name(database, names[first : first + BATCH])
                found += map(_entry, tables)
            return found

    def entry(self, database: str, name: str) -> CatalogEntry | None:
        """Return one entry; None if it is gone."""
        with self._errors(f"read {database}.{name}"), suppress(ttypes.NoSuchObjectException):
            return _entry(self._client.get_table(database, name))
        return None

    def render(self, table: Table, name: str) -> CatalogEntry:
        """Return the entry that a table should have."""
        columns = hive_fields(table.columns, MAX_COMMENT)
        properties = {**_shown(self._format, table), **table.properties}
        return CatalogEntry(name, _location(table.path), cut(table.comment, MAX_DESCRIPTION), columns, properties)

    def create(self, database: str, entry: CatalogEntry, table: Table) -> None:
        """Create an entry."""
        with self._errors(f"create {database}.{entry.name}"):
            made = _filled(ttypes.Table(entry.name, database, partitionKeys=[]), entry)
            self._client.create_table_with_environment_context(made, _context())

    def alter(self, database: str, entry: CatalogEntry, table: Table) -> None:
        """Change an entry. A metastore that refuses other types of columns gets the entry anew."""
        with self._errors(f"alter {database}.{entry.name}"):
            there = self._client.get_table(database, entry.name)
            try:
                changed = _filled(there, entry)
                self._client.alter_table_with_environment_context(database, entry.name, changed, _context())
                return
            except ttypes.InvalidOperationException:
                pass  # hive.metastore.disallow.incompatible.col.type.changes
        self.drop(database, entry.name)
        self.create(database, entry, table)

    def drop(self, database: str, name: str) -> None:
        """Drop an entry, unless it is gone."""
        with self._errors(f"drop {database}.{name}"), suppress(ttypes.NoSuchObjectException):
            self._client.drop_table(database, name, False)

    def close(self) -> None:
        """End the connection."""
        self._transport.close()

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (TTransportException, OSError) as error:
            raise _away(self._address, error) from None
        except TApplicationException as error:
            raise CatalogAway(
                self._address, str(error.message), "it has not the requests of Hive 2.3: use another catalog"
            ) from None
        except TException as error:
            raise CatalogRefused(self._address, what, _message(error)) from None


def _connected(address: CatalogAddress) -> tuple[Any, Any]:
    last: Exception | None = None
    for host in address.hosts:
        name, _, port = host.rpartition(":")
        socket = TSocket(name.strip("[]"), int(port))
        socket.setTimeout(REQUEST_SECONDS * 1000)
        transport = TBufferedTransport(socket)
        try:
            transport.open()
        except (TTransportException, OSError) as error:
            last = error
            continue
        return transport, ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    assert last is not None
    raise _away(str(address), last)


def _away(address: str, error: Exception) -> CatalogAway:
    return CatalogAway(
        address, _message(error), "look at the metastore and at the way to it; Kerberos is not supported"
    )


def _message(error: Exception) -> str:
    text = str(getattr(error, "message", "") or error) or type(error).__name__
    return text.splitlines()[0]


def _shown(form: str, table: Table) -> dict[str, str]:
    """Return the properties by which engines find the format of a table, and Iceberg's its metadata."""
    if form == ICEBERG:
        return {"EXTERNAL": "TRUE", "table_type": "ICEBERG", POINTER_PROPERTY: table.pointer}
    return {"EXTERNAL": "TRUE", PROVIDER: "delta"}


def _context() -> Any:
    return ttypes.EnvironmentContext(dict(_NO_STATISTICS))


def _location(path: str) -> str:
    """Return a table's path as Hadoop reads it: not percent-encoded."""
    cloud = cloud_of(path)
    return f"file:{path}" if cloud is None else cloud.spark_path(path)


def _entry(table: Any) -> CatalogEntry:
    properties = dict(table.parameters or {})
    descriptor = table.sd
    location, columns = "", list[Any]()
    if descriptor is not None:
        options = (descriptor.serdeInfo.parameters or {}) if descriptor.serdeInfo is not None else {}
        location, columns = options.get("path") or descriptor.location or "", descriptor.cols or []
    comment = properties.pop("comment", "")
    fields = tuple(CatalogField(each.name, each.type, each.comment or "") for each in columns)
    return CatalogEntry(table.tableName, location, comment, fields, properties)


def _filled(table: Any, entry: CatalogEntry) -> Any:
    """Write an entry into a table of Thrift; what it does not know stays."""
    kept = {name: value for name, value in (table.parameters or {}).items() if name not in own(table.parameters or {})}
    table.parameters = {**kept, **entry.properties, "comment": entry.comment}
    table.tableType = "EXTERNAL_TABLE"
    before = table.sd.parameters if table.sd is not None else None
    table.sd = ttypes.StorageDescriptor(
        cols=[ttypes.FieldSchema(each.name, each.type, each.comment) for each in entry.columns or ()],
        location=entry.location,
        inputFormat=INPUT_FORMAT,
        outputFormat=OUTPUT_FORMAT,
        numBuckets=-1,
        serdeInfo=ttypes.SerDeInfo(None, SERDE, {"path": entry.location, "serialization.format": "1"}),
        bucketCols=[],
        sortCols=[],
        parameters=before or {},
    )
    return table
