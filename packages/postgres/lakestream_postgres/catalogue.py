"""The catalogues of Postgres, pg_catalog and information_schema, over the tables of one user.

Belongs here: which queries ask them, what of a query is written otherwise for DuckDB, and their rows. They are tables
and macros (catalogue.sql, catalogue.txt) of a database in memory for each session, that has no access to anything else
and little memory. What it lists came over SQL over NATS, as the user sees it.

Clients of Postgres ask in Postgres' SQL. DuckDB parses that, and the tree is changed before it is executed: schemas,
functions of the system, casts to names of objects (`'orders'::regclass`), regular expressions, collations.
"""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import duckdb

from lakestream import __version__
from lakestream_postgres import trees
from lakestream_postgres.errors import PgError, code_of
from lakestream_postgres.rows import Rows, Service
from lakestream_postgres.statements import AskedQuery
from lakestream_postgres.trees import Node
from lakestream_postgres.types import OID, TYPES, field_of
from lakestream_postgres.wire import Field

MEMORY = 128 << 20
"""Memory of the catalogue of a session, in bytes (128 MiB)."""
WAIT_S = 10.0
"""Time for a query of the catalogue, in seconds."""
FRESH_S = 30.0
"""Age at which the list of tables is asked again, in seconds."""
QUERIES = asyncio.Semaphore(2)
"""Queries of the catalogues of all sessions at the same time, which bounds their memory."""
DESCRIBED = 8
"""Tables whose columns are asked for with one query."""
MAX_ROWS = 200_000
"""Rows of a result; it is kept in memory."""
_TABLE_FUNCTIONS = frozenset(
    {"unnest", "generate_series", "generate_subscripts", "range", "_pg_expandarray", "pg_get_keywords"}
)
_SCHEMAS = {"pg_catalog": "pgc", "information_schema": "info"}
_LISTING = frozenset({"ls_regclass", "ls_to_regclass", "ls_relation_name", "ls_pg_table_is_visible"})
_USERS = frozenset({"current_user", "session_user", "current_role", "current_catalog"})
_OPERATOR = re.compile(r"\bOPERATOR\s*\(\s*pg_catalog\s*\.\s*([^\s)]+)\s*\)", re.IGNORECASE)
_CAST = re.compile(r'::\s*"?pg_catalog"?\s*\.', re.IGNORECASE)
_CATEGORIES = (
    {16: "B", 1186: "T"}
    | dict.fromkeys((20, 21, 23, 26, 700, 701, 1700, 2205, 2206), "N")
    | dict.fromkeys((18, 19, 25, 1042, 1043), "S")
    | dict.fromkeys((1082, 1083, 1114, 1184), "D")
)
"""Categories of types (typcategory); U for others, A for arrays."""
_OIDS = {"pg_catalog": 11, "public": 2200, "information_schema": 13000, "kv": 16001, "kv_history": 16002, "obj": 16003}
"""Schemas, with their oids."""
FIRST_OID = 100_000
"""Oids of tables are from here on, by their names, so that they are the same in each session."""


@cache
def _relations() -> dict[str, str]:
    """Return the columns of each relation, as in CREATE TABLE, by its name in DuckDB."""
    found: dict[str, str] = {}
    for line in files(__package__).joinpath("catalogue.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, *columns = line.split()
            schema, _, relation = name.partition(".")
            pairs = (column.partition(":") for column in columns)
            found[f"{_SCHEMAS[schema]}.{relation}"] = ", ".join(
                f'"{each}" {kind or "VARCHAR"}' for each, _, kind in pairs
            )
    return found


@cache
def _script() -> str:
    return files(__package__).joinpath("catalogue.sql").read_text(encoding="utf-8")


@cache
def _macros() -> frozenset[str]:
    return frozenset(re.findall(r"CREATE MACRO ls_(\w+)", _script()))


def _relation(node: Node) -> str:
    """Return the name in DuckDB of the relation that a node of a table means; "" for another table."""
    schema, name = node["schema_name"].lower(), node["table_name"].lower()
    for each, ours in _SCHEMAS.items():
        if (schema == each or (not schema and each == "pg_catalog")) and f"{ours}.{name}" in _relations():
            return f"{ours}.{name}"
    return ""


class Catalogue:
    """The catalogue of one session.

    Args:
        service: lists the tables.
        database, user: names, as the client gave them.
        settings: of the session.
    """

    def __init__(self, service: Service, database: str, user: str, settings: dict[str, str]) -> None:
        self._service, self._database, self._user, self._settings = service, database, user, settings
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._made: set[str] = set()
        self._listed_at = float("-inf")
        self._started = datetime.now(UTC).isoformat()

    def close(self) -> None:
        """Close the database."""
        if self._connection is not None:
            self._connection.close()

    @staticmethod
    def knows(text: str) -> bool:
        """Return True if a query is about the catalogue: its tables, functions of the system, or nothing at all."""
        if (tree := _parsed(text)) is None:
            return False
        named = _names_of_with(tree)
        is_known = is_plain = True
        asks = False
        for node in trees.nodes(tree):
            kind = node.get("type")
            if kind == "BASE_TABLE":
                is_plain = False
                if _relation(node):
                    asks = True
                elif node["table_name"].lower() not in named or node["schema_name"]:
                    is_known = False
            elif kind in ("TABLE_FUNCTION", "SHOW_REF", "PIVOT"):
                is_plain = False
            elif node.get("class") == "FUNCTION":
                asks |= node["function_name"].lower() in _macros() or node["schema"].lower() == "pg_catalog"
                is_plain = False
            elif node.get("class") == "COLUMN_REF" and node["column_names"][0].lower() in _USERS:
                asks = True
        return is_known and (asks or is_plain)

    async def describe(self, asked: AskedQuery) -> list[Field]:
        """Return the columns of a query, whose parameters are NULL. Raises PgError."""
        described = await self._run(re.sub(r"\$\d+", "NULL", asked.text), "DESCRIBE ")
        return [_field(*row[:2]) for row in described]

    async def rows(self, text: str) -> Rows:
        """Return the rows of a query. Raises PgError."""
        described = await self._run(text, "DESCRIBE ")
        batches = await self._run(text, "")
        return Rows([_field(*row[:2]) for row in described], batches)

    def settings(self) -> Rows:
        """Return the rows of SHOW ALL."""
        import pyarrow as pa

        names = ("name", "setting", "description")
        columns = [list(self._settings), list(self._settings.values()), [""] * len(self._settings)]
        batch = pa.RecordBatch.from_arrays([pa.array(each, pa.string()) for each in columns], names)
        return Rows([field_of(name, "VARCHAR") for name in names], [batch])

    # ------------------------------------------------------------------ execution
    async def _run(self, text: str, prefix: str) -> Any:
        """Execute a query; return the rows of a DESCRIBE, or else batches of Arrow."""
        query, relations, lists = translated(text, self._settings)
        if lists and time.monotonic() - self._listed_at > FRESH_S:
            await self._list()
        connection = self._connection or self._connect()

        def execute() -> Any:
            for name in relations - self._made:
                _make(connection, name)
                self._made.add(name)
            cursor = connection.cursor()
            self._running = cursor
            found = cursor.execute(prefix + query)
            if prefix:
                return found.fetchall()
            batches, rows = [], 0
            for batch in found.to_arrow_reader(10_000):
                batches.append(batch)
                if (rows := rows + batch.num_rows) > MAX_ROWS:
                    raise PgError("54000", f"a result of the catalogue has at most {MAX_ROWS} rows")
            return batches

        async with QUERIES:
            self._fill_session(connection)
            return await self._wait(asyncio.ensure_future(asyncio.to_thread(execute)))

    async def _wait(self, work: asyncio.Future[Any]) -> Any:
        try:
            async with asyncio.timeout(WAIT_S):
                return await asyncio.shield(work)
        except (TimeoutError, asyncio.CancelledError) as stopped:
            self._running.interrupt()
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            if isinstance(stopped, TimeoutError):
                raise PgError("57014", f"the query of the catalogue was stopped after {WAIT_S:.0f} s") from None
            raise
        except (duckdb.Error, OSError) as error:
            if isinstance(error, duckdb.InternalException | duckdb.FatalException):
                self._connection, self._listed_at = None, float("-inf")  # a defect: it answers nothing any more
                self._made.clear()
            said = re.sub(r"^\w[\w ]* Error: ", "", str(error).partition("\n")[0].replace("ls_", ""))
            raise PgError(code_of(said), said) from None

    def _connect(self) -> duckdb.DuckDBPyConnection:
        self._connection = found = duckdb.connect(
            config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        )
        found.execute("SET GLOBAL TimeZone = 'UTC'")
        found.execute(_script().partition("CREATE VIEW")[0])
        found.executemany("INSERT INTO ls_schemas VALUES (?, ?)", [(oid, name) for name, oid in _OIDS.items()])
        for oid, kind in TYPES.items():
            category = _CATEGORIES.get(oid, "U")
            found.execute(
                "INSERT INTO ls_types VALUES (?, ?, ?, ?, ?, ?)",
                [oid, kind.name, kind.internal, kind.size, kind.array, category],
            )
            if kind.array:
                found.execute(
                    "INSERT INTO ls_types VALUES (?, ?, ?, -1, 0, 'A')",
                    [kind.array, f"{kind.name}[]", f"_{kind.internal}"],
                )
        for setting in (
            "python_enable_replacements = false",
            f"memory_limit = '{MEMORY}B'",
            "threads = 1",
            "temp_directory = ''",
            "max_expression_depth = 250",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            found.execute(f"SET {setting}")
        return found

    def _fill_session(self, connection: duckdb.DuckDBPyConnection) -> None:
        own = {"database": self._database, "pid": "0", "started": self._started, "lakestream_version": __version__}
        rows = [[name, value] for name, value in (self._settings | own).items()]
        connection.execute("DELETE FROM ls_session")
        connection.executemany("INSERT INTO ls_session VALUES (?, ?)", rows)

    # ------------------------------------------------------------------ tables
    async def _list(self) -> None:
        """Ask which tables there are, and their columns."""
        connection = self._connection or self._connect()
        names = []
        try:
            answer = await self._service.rows(AskedQuery("SHOW TABLES"), {})
            while (batch := await answer.next()) is not None:
                names += batch.column(0).to_pylist()
        except PgError as error:
            if error.code != "42501":
                raise
        tables = [table for name in names if (table := _named(name)) is not None]
        shapes: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for at in range(0, len(tables), DESCRIBED):
            shapes |= await self._shapes(connection, tables[at : at + DESCRIBED])
        named = [each.replace("pgc.", "pg_catalog.").replace("info.", "information_schema.") for each in _relations()]
        views = [(schema, name, "v") for schema, _, name in (each.partition(".") for each in named)]
        relations, columns = [], []
        for schema, name, kind in [*((*each, "r") for each in shapes), *views]:
            oid = FIRST_OID + zlib.crc32(f"{schema}.{name}".encode()) % 2_000_000_000
            relations.append((oid, _OIDS[schema], schema, name, kind))
            for number, (column, type_name) in enumerate(shapes.get((schema, name), ()), 1):
                field = field_of(column, type_name)
                columns.append((oid, number, column, field.oid, field.size, field.modifier))
        for into, rows in (("ls_relations", relations), ("ls_columns", columns)):
            connection.execute(f"DELETE FROM {into}")
            if rows:
                connection.executemany(f"INSERT INTO {into} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        self._listed_at = time.monotonic()

    async def _shapes(
        self, connection: duckdb.DuckDBPyConnection, tables: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], list[tuple[str, str]]]:
        """Return the columns of tables, each with its name and type. A table that cannot be read has none."""
        joins = " ".join(f"LEFT JOIN {_quoted(table)} t{number} ON false" for number, table in enumerate(tables))
        asked = f"SELECT {', '.join(f't{number}' for number in range(len(tables)))} FROM (SELECT 1) {joins}"
        try:
            answer = await self._service.columns(asked)
        except PgError:
            if len(tables) == 1:
                return {tables[0]: []}
            shapes = [await self._shapes(connection, [each]) for each in tables]
            return {table: columns for shape in shapes for table, columns in shape.items()}
        found = {}
        for table, kind in zip(tables, answer, strict=True):
            rows = connection.execute(f"DESCRIBE SELECT unnest(CAST(NULL AS {kind}))").fetchall()
            found[table] = [(row[0], row[1]) for row in rows]
        return found


def _field(name: str, kind: str) -> Field:
    """Return a column of the catalogue, whose arrays of numbers are oids."""
    return Field(name, TYPES[OID].array) if kind == "BIGINT[]" else field_of(name, kind)


def _make(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Make a relation: a view of catalogue.sql with all columns, or an empty table."""
    shape = _relations()[name]
    view = re.search(rf"CREATE VIEW {re.escape(name)} AS (.*?);\n", _script(), re.DOTALL)
    if view is None:
        connection.execute(f"CREATE TABLE {name} ({shape})")
        return
    query = view[1]
    if used := re.search(r"^FROM (pgc|info)\.(\w+)", query):
        inner = re.search(rf"CREATE VIEW {used[1]}\.{used[2]} AS (.*?);\n", _script(), re.DOTALL)
        query = inner[1] if inner else query
    connection.execute(f"CREATE OR REPLACE TEMP TABLE shape ({shape})")
    connection.execute(f"CREATE TABLE {name}_shape AS FROM shape")
    connection.execute(f"CREATE VIEW {name} AS FROM {name}_shape UNION ALL BY NAME ({query})")


def _named(name: str) -> tuple[str, str] | None:
    """Return schema and name of a table as SHOW TABLES writes it."""
    match = re.fullmatch(r"(\w+)\.`(.*)`", name, re.DOTALL)
    if match is None:
        return None
    if match[1] == "delta":
        return ("public", match[2].removeprefix("streams/")) if match[2].startswith("streams/") else None
    return match[1], match[2]


def _quoted(table: tuple[str, str]) -> str:
    schema, name = ('"' + part.replace('"', '""') + '"' for part in table)
    return name if table[0] == "public" else f"{schema}.{name}"


# ---------------------------------------------------------------------- Postgres' SQL


def translated(text: str, settings: dict[str, str]) -> tuple[str, set[str], bool]:
    """Return a query as DuckDB gets it, the relations that it reads, and whether it needs the list of tables.

    Raises:
        PgError: it does more than read the catalogue.
    """
    tree = _parsed(text)
    if tree is None:
        raise PgError("42601", "the query is not one that reads the catalogue")
    relations = _rewrite(tree, settings)
    lists = bool(relations) or any(node.get("function_name") in _LISTING for node in trees.nodes(tree))
    return trees.text_of(tree), relations, lists


def _parsed(text: str) -> Node | None:
    """Return the tree of a query in which DuckDB's parser would stop at operators and types with a schema."""
    return trees.parse(_CAST.sub("::", _OPERATOR.sub(r"\1", text)))


def _names_of_with(tree: Node) -> set[str]:
    return {
        str(each["key"]).lower() for node in trees.nodes(tree) for each in (node.get("cte_map") or {}).get("map") or ()
    } | {str(node["cte_name"]).lower() for node in trees.nodes(tree) if node.get("type") == "RECURSIVE_CTE_NODE"}


def _rewrite(tree: Node, settings: dict[str, str]) -> set[str]:
    """Change a query for DuckDB, in place; return the relations that it reads.

    Raises:
        PgError: it reads something else.
    """
    relations, named = set(), _names_of_with(tree)
    for select in [node for node in trees.nodes(tree) if node.get("type") == "SELECT_NODE"]:
        for chosen in select["select_list"]:
            if not chosen.get("alias"):
                chosen["alias"] = trees.shown(chosen)
    for node in [*trees.nodes(tree)]:
        kind, group = node.get("type"), node.get("class")
        if kind == "BASE_TABLE":
            if name := _relation(node):
                node["alias"] = node["alias"] or node["table_name"]
                node["catalog_name"], (node["schema_name"], _, node["table_name"]) = "", name.partition(".")
                relations.add(name)
            elif node["schema_name"] or node["table_name"].lower() not in named:
                raise PgError("42P01", f'relation "{node["table_name"]}" is not in the catalogue')
        elif kind == "TABLE_FUNCTION" and node["function"].get("function_name", "").lower() not in _TABLE_FUNCTIONS:
            trees.make_subquery(node, node["function"])  # a function of values may stand for a table in Postgres
        elif kind == "TABLE_FUNCTION" and node["alias"] and not node["column_name_alias"]:
            node["column_name_alias"] = [node["alias"]]  # the name of the one is that of the other in Postgres
        elif kind == "SHOW_REF":
            raise PgError("42601", "DESCRIBE and SUMMARIZE read streams")
        elif group == "COLUMN_REF":
            names = node["column_names"]
            if len(names) > 2 and names[0].lower() in _SCHEMAS:
                node["column_names"] = names[1:]
            elif len(names) == 1 and names[0].lower() in _USERS:
                _call(node, names[0].lower())
        elif group == "FUNCTION" and (setting := _setting_of(node)):
            # A function in FROM takes no subqueries, as the macro would be.
            value, alias = settings.get(setting), node["alias"]
            given = {"type": {"id": "VARCHAR", "type_info": None}, "is_null": value is None, "value": value or ""}
            node.clear()
            node.update({"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": alias, "value": given})
        elif group == "FUNCTION":
            _function(node)
        elif group == "CAST":
            _cast(node)
        elif group == "COLLATE":
            child = node["child"]
            alias = node["alias"]
            node.clear()
            node.update(child | {"alias": alias or child.get("alias", "")})
            if node.get("class") in ("COLLATE", "CAST", "FUNCTION"):  # was visited under its old object
                (_cast if node["class"] == "CAST" else _function if node["class"] == "FUNCTION" else lambda _: None)(
                    node
                )
        if node.get("id") == "UNBOUND":
            name = node["type_info"]["name"].lower()
            node["id"], node["type_info"] = ("INTEGER" if name == "cardinal_number" else "VARCHAR"), None
    return relations


def _setting_of(node: Node) -> str:
    """Return the name of the setting that a call of current_setting has as a constant; "" for another call."""
    if node["function_name"].lower() != "current_setting" or node["schema"].lower() not in ("", "pg_catalog"):
        return ""
    name = (node["children"][0].get("value") or {}).get("value") if node["children"] else None
    return name.lower() if isinstance(name, str) else ""


def _call(node: Node, name: str, *children: Node) -> None:
    """Make a node the call of a macro."""
    alias = node.get("alias", "")
    made = trees.call() | {
        "function_name": f"ls_{name}",
        "children": list(children),
        "alias": alias,
    }
    node.clear()
    node.update(made)


def _function(node: Node) -> None:
    name = node["function_name"].lower()
    if node["schema"].lower() in (*_SCHEMAS, "public"):
        node["schema"] = ""
    if name in _macros():
        node["function_name"] = f"ls_{name}"
    elif name in ("json_build_object", "jsonb_build_object"):
        node["function_name"] = "json_object"
    elif name in ("regexp_full_match", "~*"):
        # DuckDB makes a whole match of `~`, which is a search in Postgres; and capitals in names mean nothing here.
        insensitive = {"type": {"id": "VARCHAR", "type_info": None}, "is_null": False, "value": "i"}
        node["children"].append({"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "value": insensitive})
        node["function_name"], node["is_operator"] = "regexp_matches", False


_OBJECTS = {"regclass": "relation_name", "regnamespace": "schema_name", "regtype": "format_type"}


def _cast(node: Node) -> None:
    """Change a cast to a type that names an object: a name becomes its oid, an oid its name."""
    child, kind = node["child"], node["cast_type"]
    info = kind.get("type_info") or {}
    if kind.get("id") == "LIST" and child.get("class") == "CONSTANT":
        text = child["value"].get("value")
        if isinstance(text, str) and text.startswith("{"):
            child["value"]["value"] = f"[{text[1:-1]}]"
    name = str(info.get("name", "")).lower() if kind.get("id") == "UNBOUND" else ""
    if name == "regclass":
        _call(node, "regclass", child)
    elif name in _OBJECTS and child.get("class") == "CONSTANT":
        _call(node, name, child)
    elif name == "regtype":
        null = {"type": {"id": "NULL", "type_info": None}, "is_null": True}
        _call(node, "format_type", child, {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "value": null})
    elif name in _OBJECTS:
        _call(node, _OBJECTS[name], child)
    elif kind.get("id") == "VARCHAR" and child.get("class") == "CAST":
        inner = child["cast_type"].get("type_info") or {}
        if str(inner.get("name", "")).lower() == "regclass":
            _call(node, "relation_name", child["child"])
