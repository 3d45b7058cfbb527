"""A server with a listener for Postgres' protocol, for tests of several clients.

Belongs here: its configuration, its streams, and addresses for clients.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import bcrypt

from tests.keys import user_key
from tests.servers import Kind, Server
from tests.wire import Wire

PSQL = "/usr/bin/psql"
HASH = bcrypt.hashpw(b"pw", bcrypt.gensalt(4)).decode()
KEY = user_key("postgres")
CONFIG = f"""
accounts {{
  MINE {{ jetstream: enabled, users: [
    {{ user: ann, password: pw }}
    {{ user: hashed, password: "{HASH}" }}
    {{ nkey: {KEY.public} }}
    {{ user: none, password: pw, permissions {{ publish: {{ deny: ["$LAKE.API.SQL", "$LAKE.API.SQL.>"] }} }} }}
    {{ user: one, password: pw, permissions {{
      publish: {{ allow: ["$LAKE.API.SQL.ORDERS", "$LAKE.API.SQL.FLOW.>", "$LAKE.API.SQL.CANCEL.*"] }} }} }} ] }}
  B {{ jetstream: enabled, users: [{{ user: bob, password: pw }}] }}
}}
lake {{ seal_age: "1h" }}
sql {{ postgres {{ listen: "127.0.0.1:-1", max_connections: 20 }}, max_rows: 400000, max_time: 20s }}
"""
ROWS = 3


def started(store: Path) -> Server:
    """Start a server with a stream in each of two accounts, and a bucket."""
    server = Server(Kind.OURS, store, config=CONFIG)
    server.start(timeout=90)
    streams = (("ann", "ORDERS", "orders"), ("ann", "KV_settings", "$KV.settings"), ("bob", "SECRET", "secret"))
    for user, stream, subject in streams:
        with Wire(server.address, {"user": user, "pass": "pw"}, 20) as wire:
            config = {"name": stream, "subjects": [f"{subject}.>"], "max_msgs_per_subject": 5}
            wire.api(f"STREAM.CREATE.{stream}", config)
            for number in range(ROWS):
                wire.request(f"{subject}.{number}", b'{"n": %d}' % number)
            wire.request(f"$LAKE.API.FLUSH.{stream}")
    return server


def port(server: Server) -> int:
    """Return the port of the listener."""
    found = re.search(r"Postgres on [\d.]+:(\d+)", server.log())
    assert found is not None
    return int(found[1])


def address(server: Server, user: str = "ann", password: str = "pw", **more: Any) -> dict[str, Any]:
    """Return the arguments of psycopg's connections."""
    return {"host": "127.0.0.1", "port": port(server), "user": user, "password": password, "dbname": "lake"} | more


def psql(server: Server, *commands: str, user: str = "ann", password: str = "pw") -> subprocess.CompletedProcess[str]:
    """Run psql with some commands."""
    where = f"host=127.0.0.1 port={port(server)} user={user} dbname=lake"
    arguments = [each for command in commands for each in ("-c", command)]
    environment = {**os.environ, "PGPASSWORD": password, "PSQLRC": "/dev/null", "PSQL_PAGER": "cat"}
    return subprocess.run(
        [PSQL, where, "-v", "ON_ERROR_STOP=1", "-A", "-t", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
