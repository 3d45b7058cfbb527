"""A server with the part of Unity Catalog's REST API 2.1 that lakestream and DuckDB use.

The official server is not on every machine that runs the tests, so this one follows the published OpenAPI document:
paths, parameters, required and known fields, types, names, codes of errors, pages of at most 50 tables. It refuses what
the document does not allow.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import jsonschema

BASE = "/api/2.1/unity-catalog"
TEXT, WHOLE = {"type": "string"}, {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}
PROPERTIES = {"type": "object", "additionalProperties": TEXT}
NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_@-]{1,255}$"}
TYPES = [
    *("BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "DECIMAL", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"),
    *("STRING", "BINARY", "CHAR", "INTERVAL", "ARRAY", "STRUCT", "MAP", "VARIANT", "NULL"),
]


def record(required: str = "", **fields: Any) -> dict[str, Any]:
    """Return the schema of an object that has no other fields."""
    return {"type": "object", "properties": fields, "required": required.split(), "additionalProperties": False}


COLUMN = record(
    name=TEXT,
    type_text=TEXT,
    type_json=TEXT,
    type_name={"enum": TYPES},
    type_precision=WHOLE,
    type_scale=WHOLE,
    type_interval_type=TEXT,
    position=WHOLE,
    comment=TEXT,
    nullable={"type": "boolean"},
    partition_index=WHOLE,
)
BODIES = {
    "catalogs": record("name", name=NAME, comment=TEXT, properties=PROPERTIES, storage_root=TEXT),
    "schemas": record("name catalog_name", name=NAME, catalog_name=NAME, comment=TEXT, properties=PROPERTIES),
    "tables": record(
        "name catalog_name schema_name table_type columns",
        name=NAME,
        catalog_name=NAME,
        schema_name=NAME,
        table_type={"enum": ["EXTERNAL"]},
        data_source_format={"enum": ["DELTA", "ICEBERG", "CSV", "JSON", "AVRO", "PARQUET", "ORC", "TEXT"]},
        columns={"type": "array", "items": COLUMN},
        storage_location={"type": "string", "pattern": "^(file:///|s3://)[!-~]+$"},
        comment=TEXT,
        properties=PROPERTIES,
    ),
}
"""Request bodies: CreateCatalog, CreateSchema, CreateTable."""
PARENTS = {"catalogs": (), "schemas": ("catalog_name",), "tables": ("catalog_name", "schema_name")}
MOST = 50
"""Maximum number of objects of a page."""


class Refused(Exception):
    """An error of the API."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class UnityServer:
    """The server, in threads of this process.

    Args:
        token: bearer token that requests need; "": none.
    """

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.objects: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in BODIES}
        self.requests: list[str] = []
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"unity": self}))
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self._http.server_port}"
        self.create("catalogs", {"name": "unity"})

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, method: str, target: str, token: str, body: bytes) -> dict[str, Any]:
        parts = urlsplit(target)
        if not parts.path.startswith(f"{BASE}/"):
            raise Refused(404, "NOT_FOUND", parts.path)
        if self.token and token != f"Bearer {self.token}":
            raise Refused(401, "UNAUTHENTICATED", "the token is wrong")
        kind, _, name = parts.path.removeprefix(f"{BASE}/").partition("/")
        arguments = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if kind not in BODIES:
            raise Refused(404, "NOT_FOUND", kind)
        with self._lock:
            self.requests.append(f"{method} {kind}")
            if method == "POST" and not name:
                return self.create(kind, json.loads(body))
            if method == "GET" and not name:
                return self._page(kind, arguments)
            found = self._found(kind, unquote(name))
            if method == "DELETE":
                del self.objects[kind][unquote(name)]
                return {}
            if method == "GET":
                return found
        raise Refused(405, "UNIMPLEMENTED", method)

    def create(self, kind: str, body: Any) -> dict[str, Any]:
        try:
            jsonschema.validate(body, BODIES[kind])
        except jsonschema.ValidationError as error:
            raise Refused(400, "INVALID_ARGUMENT", error.message) from None
        above = [body[parent] for parent in PARENTS[kind]]
        if above:
            self._found(list(BODIES)[len(above) - 1], ".".join(above))
        name = ".".join([*above, body["name"]])
        if name in self.objects[kind]:
            raise Refused(400, f"{kind[:-1].upper()}_ALREADY_EXISTS", f"{name} already exists")
        if kind == "tables":
            self._check_table(body)
        self.objects[kind][name] = {**body, "full_name": name, f"{kind[:-1]}_id": str(uuid.uuid4())}
        return self.objects[kind][name]

    def _check_table(self, body: dict[str, Any]) -> None:
        if "storage_location" not in body:
            raise Refused(400, "INVALID_ARGUMENT", "an external table needs a storage location")
        place = body["storage_location"].rstrip("/") + "/"
        for each in self.objects["tables"].values():
            other = each["storage_location"].rstrip("/") + "/"
            if place.startswith(other) or other.startswith(place):
                raise Refused(400, "INVALID_ARGUMENT", f"{place} overlaps with {other}")
        for number, column in enumerate(body["columns"]):
            field = json.loads(column["type_json"])
            assert field["name"] == column["name"]
            assert column["position"] == number
            assert (column["type_name"] == "DECIMAL") == bool(column["type_precision"])

    def _found(self, kind: str, name: str) -> dict[str, Any]:
        if name not in self.objects[kind]:
            raise Refused(404, "NOT_FOUND", f"{kind[:-1]} {name} not found")
        return self.objects[kind][name]

    def _page(self, kind: str, arguments: dict[str, str]) -> dict[str, Any]:
        most = int(arguments.get("max_results", MOST)) or MOST
        if not 0 < most <= MOST:
            raise Refused(400, "INVALID_ARGUMENT", "max_results")
        if missing := [
            parent for parent in PARENTS[kind] if not re.fullmatch(NAME["pattern"], arguments.get(parent, ""))
        ]:
            raise Refused(400, "INVALID_ARGUMENT", f"{missing} are required")
        above = [arguments[parent] for parent in PARENTS[kind]]
        if above:
            self._found(list(BODIES)[len(above) - 1], ".".join(above))
        names = sorted(name for name in self.objects[kind] if name.split(".")[:-1] == above)
        rest = [name for name in names if name > arguments.get("page_token", "")]
        page: dict[str, Any] = {kind: [self.objects[kind][name] for name in rest[:most]]}
        # As some releases do, also for the last page.
        return {**page, "next_page_token": rest[:most][-1]} if rest else page


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    unity: UnityServer

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def log_message(self, *arguments: Any) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        try:
            status, found = 200, self.unity.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
        except Refused as error:
            status, found = error.status, {"error_code": error.code, "message": str(error), "details": []}
        content = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
