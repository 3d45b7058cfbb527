"""DuckDB over the lake's Delta tables.

Belongs here: executing SQL of its own, loading its extensions, from installed wheels and never from the network, and
its access to an object store: on S3 by DuckDB itself, where the AWS SDK finds the credentials in the environment or
from the instance; by stored_files.py otherwise. No text made here contains credentials.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from lakestream.lake.storage import paths
from lakestream.lake.storage.clouds.known import cloud_of
from lakestream.lake.storage.clouds.s3 import S3
from lakestream.lake.storage.lake import open_storage
from lakestream.lake.table.schema import literal
from lakestream_sql import confined, explained
from lakestream_sql.confined import BOUNDS, QueryBounds
from lakestream_sql.explained import SqlError
from lakestream_sql.file_views import FileViews
from lakestream_sql.parser import SqlParser

if TYPE_CHECKING:
    from lakestream_sql.stored_files import StoredFiles

QUICK_S = 0.05
"""Time (50 ms) after which a query is no quick one."""
_PACKAGE = "duckdb_extension_"

# typeof() is constant for a column, so that DuckDB keeps only the branch that applies.
_TEXT = (
    "CREATE MACRO text(x) AS CASE typeof(x) WHEN 'BLOB' THEN decode(TRY_CAST(x AS BLOB), 'replace') "
    "ELSE CAST(x AS VARCHAR) END"
)
"""A function of ours: the text of a payload, in which `?` is what is not UTF-8."""


class ExtensionMissing(SqlError):
    """Raised when an extension for this DuckDB is not installed."""


class NoCredentials(SqlError):
    """Raised when there are no credentials for the object store."""


def extension_path(name: str = "delta") -> Path:
    """Return the path of an extension in the installed wheel duckdb-extension-<name>, for the DuckDB in use.

    Raises:
        ExtensionMissing: when the wheel is not there, or is for another DuckDB.
    """
    spec = importlib.util.find_spec(_PACKAGE + name)
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
        if path.is_file():
            return path
    raise ExtensionMissing(
        f"DuckDB {duckdb.__version__} has no {name} extension here: "
        f"pip install duckdb==1.5.5 duckdb-extension-{name}==1.5.5 (the two versions must be equal)"
    )


class Engine:
    """DuckDB over the tables of one lake.

    Args:
        root: the lake's.
        account: confine DuckDB to the tables of this account; None: no account and no file is out of reach.
        bounds: memory and threads of a confined DuckDB.

    Attributes:
        connection: whose cursors execute queries.
        views: the FROM items of tables.

    Raises:
        ExtensionMissing, NoCredentials.
    """

    def __init__(self, root: str, account: str | None = None, bounds: QueryBounds = BOUNDS) -> None:
        self.root, self.account = root, account
        # The credentials of other clouds than S3 are not all known to DuckDB.
        itself = paths.is_local(root) or (account is None and isinstance(cloud_of(root), S3))
        self.connection, files = connect(root, itself=itself)
        self.parser = SqlParser(self.connection)
        self.views = FileViews(root, self.connection, files)
        self._threads = ThreadPoolExecutor(thread_name_prefix="query")
        if account is not None:
            tables = paths.table(root, "", account)
            confined.confine(self.connection, tables if files is None else files.spelled(tables), bounds)

    def check(self, sql: str, selections: Collection[str] = (), prefix: str = "", *, restricted: bool = False) -> None:
        """Check a query of a confined DuckDB, as `confined.check` does. Raises ForbiddenQuery."""
        if self.account is not None:
            confined.check(self.connection, self.parser, sql, selections, prefix, restricted=restricted)

    def execute(
        self, sql: str, arrow: Mapping[str, Any], meanwhile: Callable[[], None] | None = None
    ) -> duckdb.DuckDBPyConnection:
        """Execute in a thread: DuckDB checks for Ctrl-C only between its tasks, which can be many seconds long.

        Args:
            arrow: tables by the names that the query may have for them.
            meanwhile: called if it takes longer than `QUICK_S`.

        Raises:
            duckdb.Error.
        """
        cursor = self.connection.cursor()
        arrow = {**arrow, **self.views.encrypted}
        for name in filter(sql.__contains__, arrow):  # to register one costs 0.4 ms
            cursor.register(name, arrow[name])
        running = self._threads.submit(cursor.execute, sql)
        try:
            if meanwhile is not None and wait([running], QUICK_S).not_done:
                meanwhile()
            return running.result()
        except KeyboardInterrupt:
            cursor.interrupt()
            wait([running])
            raise

    def rows(self, sql: str, arrow: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a query of our own."""
        try:
            return self.execute(sql, arrow).fetchall()
        except duckdb.Error as error:
            raise SqlError(explained.first_line(error)) from None

    def columns(self, rows: str, arrow: Mapping[str, Any]) -> dict[str, str]:
        """Return the columns of a SELECT with their types."""
        return {str(row[0]): str(row[1]) for row in self.rows(f"DESCRIBE {rows}", arrow)}

    def value(self, expression: str) -> object:
        """Return the value of a constant expression; None when it has none."""
        self.check(f"SELECT {expression}")
        try:
            row = self.connection.cursor().execute(f"SELECT {expression}").fetchone()
        except duckdb.Error:
            return None
        return row[0] if row else None


def connect(root: str, *, itself: bool) -> tuple[duckdb.DuckDBPyConnection, StoredFiles | None]:
    """Open a database in memory that reads the tables below a lake's root. Times are in UTC.

    Args:
        itself: DuckDB reads the Delta tables by itself.

    Returns:
        The connection, and where it finds files if it does not read tables by itself.

    Raises:
        ExtensionMissing, NoCredentials.
    """
    remote = itself and not paths.is_local(root)
    names = (("httpfs", "aws") if remote else ()) + (("delta",) if itself else ())
    extensions = [extension_path(name) for name in names]
    # No network access: extensions come from wheels or are built in.
    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    connection.execute("SET enable_progress_bar = false")  # which is on if Python's program is no file
    for extension in extensions:
        connection.execute("LOAD " + literal(str(extension)))
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute("SET GLOBAL errors_as_json = true")
    # The footers of ten million messages are 1.3 MB: without this, a fifth of the time of WHERE subject = '…'.
    connection.execute("SET GLOBAL parquet_metadata_cache = true")
    connection.execute(_TEXT)
    if remote:
        try:
            connection.execute(_secret(root))
        except duckdb.Error as error:
            connection.close()
            reason = explained.first_line(error)
            raise NoCredentials(f"there are no credentials for {root} in the environment: {reason}") from None
    if itself:
        return connection, None
    from lakestream_sql.stored_files import StoredFiles

    files = StoredFiles(open_storage(root))
    connection.register_filesystem(files)
    return connection, files


def add_functions(
    connection: duckdb.DuckDBPyConnection, functions: Mapping[str, tuple[Callable[[Any], Any], str, str]]
) -> None:
    """Create functions of Arrow arrays that are not there yet, by name, with the types that each takes and returns;
    cursors of the connection have them too."""
    known = "SELECT 1 FROM duckdb_functions() WHERE function_name = ?"
    for name, (function, takes, returns) in functions.items():
        if connection.execute(known, [name]).fetchone() is None:
            more: dict[str, Any] = {"type": "arrow", "null_handling": "special"}
            connection.create_function(name, function, [duckdb.type(takes)], duckdb.type(returns), **more)


def _secret(root: str) -> str:
    """Return the statement that gives DuckDB access to the object store, with credentials from the SDK's own chain."""
    settings = ["TYPE s3", "PROVIDER credential_chain", f"SCOPE {literal(root)}"]
    cloud = S3()
    where = cloud.endpoint()
    if where is not None:
        scheme, _, host = where.partition("://")
        settings += [f"ENDPOINT {literal(host)}", f"USE_SSL {str(scheme == 'https').lower()}"]
        settings.append(f"URL_STYLE {literal('vhost' if cloud.is_virtual_hosted(os.environ) else 'path')}")
    if region := cloud.region(os.environ):
        settings.append(f"REGION {literal(region)}")
    return f"CREATE SECRET lake ({', '.join(settings)})"
