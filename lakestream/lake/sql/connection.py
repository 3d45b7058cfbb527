"""Connections to DuckDB that can read the lake's Delta tables.

Belongs here: loading its extensions, from installed wheels and never from the network, and its access to an object
store. The AWS SDK finds the credentials, in the environment or from the instance; no text made here contains them.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import duckdb

from lakestream.lake.delta.schema import literal
from lakestream.lake.files import paths, s3
from lakestream.lake.sql import dialect
from lakestream.lake.sql.dialect import SqlError

_PACKAGE = "duckdb_extension_"


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


def connect(root: str) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that reads the tables below a lake's root. Times are in UTC.

    Raises:
        ExtensionMissing, NoCredentials.
    """
    remote = not paths.is_local(root)
    extensions = [extension_path(name) for name in (("httpfs", "aws") if remote else ()) + ("delta",)]
    # No network access: extensions come from wheels or are built in.
    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    for extension in extensions:
        connection.execute("LOAD " + literal(str(extension)))
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    for macro in dialect.MACROS:
        connection.execute(macro)
    if remote:
        try:
            connection.execute(_secret(root))
        except duckdb.Error as error:
            connection.close()
            reason = str(error).strip().splitlines()[0]
            raise NoCredentials(f"there are no credentials for {root} in the environment: {reason}") from None
    return connection


def _secret(root: str) -> str:
    """Return the statement that gives DuckDB access to the object store, with credentials from the SDK's own chain."""
    settings = ["TYPE s3", "PROVIDER credential_chain", f"SCOPE {literal(root)}"]
    where = s3.endpoint()
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if where is not None:
        scheme, _, host = where.partition("://")
        virtual = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("1", "true", "yes")
        settings += [f"ENDPOINT {literal(host)}", f"USE_SSL {str(scheme == 'https').lower()}"]
        settings.append(f"URL_STYLE {literal('vhost' if virtual else 'path')}")
        region = region or s3.DEFAULT_REGION
    if region:
        settings.append(f"REGION {literal(region)}")
    return f"CREATE SECRET lake ({', '.join(settings)})"
