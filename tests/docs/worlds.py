"""Preparations for the pages: a server, streams, files, names.

Belongs here: a `World` for each page that needs more than a server with an empty store, and the places and names that
pages may use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PLACES = ("/srv", "/data", "/var/lib/lakestream", "/etc/lakestream", "/opt/lakestream")
"""Directories of the machine that the pages show; a page's run has directories of its own there."""

HOSTS = ("nats.example", "old.example", "hub.example", "host1", "host2", "host3", "a", "b", "c")
"""Names of machines on the pages."""

SERVE = "lakestream serve -a 127.0.0.1 -js -sd data\n"
UP = "ln -s $PWD/data/lake /srv/lake\nlakestream up -a 127.0.0.1 -c seals.conf -sd data\n"
SEALS = {"seals.conf": "lake { seal_age: 1s, staged_grace: 5m }\n"}
"""A configuration with which commits follow soon, as a file."""

ORDER = '{"id": {{Count}}, "price": 9.5, "country": "de", "ordered_at": "2026-05-01T12:00:00Z"}'
STREAM = "nats stream add ORDERS --subjects 'orders.>' --defaults\n"
COPIED = """\
listen: "127.0.0.1:4222"
http: "127.0.0.1:8222"
pid_file: "server.pid"
jetstream { store_dir: "data" }
lake { seal_age: 2s }
"""
"""Configuration of a server whose process id is in a file."""
ORDERS = f"{STREAM}nats pub orders.de '{ORDER}' --count 60\nnats pub orders.fr '{ORDER}' --count 40\n"


def commits(number: int, lake: str = "data/lake") -> str:
    """Return commands that publish to ORDERS until its table has that many versions after the first."""
    tables = f"lakestream sql --lake {lake} --committed --format csv -q"
    history = "DESCRIBE HISTORY delta.`streams/ORDERS`"
    return f"""\
{{
for round in $(seq 120); do
  nats pub orders.de '{ORDER}' --count 10 --quiet
  versions=$({tables} '{history}' 2>/dev/null | wc -l) || versions=0
  if [ "$versions" -gt {number + 1} ]; then break; fi
  sleep 1
done
[ "$versions" -gt {number + 1} ]
}}
"""


CONNECTED = """\
import nats
nc = await nats.connect("nats://127.0.0.1:4222")
js = nc.jetstream()
"""
SESSION = """\
from lakestream.spark import session
spark = session("{lake}")
"""


class World(NamedTuple):
    """The state in which a page begins.

    Attributes:
        before: commands, as on a page.
        python: a program whose names the page's Python uses; it runs after the commands.
        sql: flags of `lakestream sql` for the page's SQL.
        files: texts of files in the working directory.
    """

    before: str = SERVE
    python: str = ""
    sql: tuple[str, ...] = ()
    files: Mapping[str, str] = {}


TABLE = World(UP + STREAM + commits(4), files=SEALS)
"""A server, its compactor, and a table of ORDERS with some versions; the lake is /srv/lake as well."""

WORLDS: dict[str, World] = {
    "README.md": TABLE._replace(
        before=UP,
        files={**SEALS, "orders/1.json": '{"country": "de", "id": 7, "ordered_at": "2026-05-01T12:00:00Z"}\n'},
    ),
    "docs/accounts.md": World(""),
    "docs/backup.md": World("lakestream up -c nats.conf\n" + ORDERS, files={"nats.conf": COPIED}),
    "docs/commands.md": World(
        "cp nats.conf /etc/lakestream/\n", files={"nats.conf": "jetstream { store_dir: data }\n"}
    ),
    "docs/consumers.md": World(SERVE + ORDERS),
    "docs/console.md": World(""),
    "docs/failure-modes.md": World("lakestream serve -a 127.0.0.1 -js -sd data -m 8222\n"),
    "docs/import-export.md": World(
        files={
            f"orders/{number}.json": f'{{"country": "de", "id": {number}, "ordered_at": "2026-05-01T12:00:00Z", '
            f'"customer_id": "c{number}", "price": 1.5, "items": ["a"]}}\n'
            for number in (1, 2)
        }
        | {"prices.csv": "zip,price,sold\n01234,1.50,true\n99999,2,false\n"}
    ),
    "docs/lake.md": TABLE,
    "docs/install.md": World(""),
    "docs/leafnodes.md": World(""),
    "docs/maintenance.md": TABLE,
    "docs/metrics.md": World(""),
    "docs/mirrors.md": World(SERVE + ORDERS + "nats stream add RETURNS --subjects 'returns.>' --defaults\n"),
    "docs/not-served.md": World("", files={"nats.conf": "port: 4222\ngateway {}\n"}),
    "docs/object-store.md": World(files={"report.pdf": "%PDF-1.4\n"}),
    "docs/quickstart.md": World(""),
    "docs/sizing.md": World(SERVE + ORDERS),
    "docs/readers.md": TABLE._replace(python=SESSION.format(lake="/srv/lake")),
    "docs/spark.md": TABLE._replace(sql=("--engine", "spark"), files={**SEALS, "program.py": "print(1)\n"}),
    "docs/spark-source.md": TABLE._replace(python=SESSION.format(lake="data/lake")),
    "docs/recipes/airflow.md": TABLE,
    "docs/recipes/grafana.md": TABLE,
    "docs/reference/index.md": World("", files={"nats.conf": "port: 4222\n"}),
    "docs/sql.md": TABLE,
    "docs/sql-duckdb.md": TABLE._replace(
        files={**SEALS, "question.sql": "SELECT count(*) FROM delta.`streams/ORDERS`;\n"}
    ),
    "docs/sql-over-nats.md": TABLE,
    "docs/streams.md": World(SERVE),
    "docs/tutorials/application.md": World(""),
    "docs/tutorials/data.md": World(""),
    "docs/tutorials/operator.md": World(""),
    "docs/tutorials/sre.md": World(""),
    "docs/time-travel.md": World(SERVE, CONNECTED + 'kv = await js.create_key_value(bucket="conf")\n'),
    "docs/upgrade.md": World("lakestream up -c nats.conf\n" + ORDERS, files={"nats.conf": COPIED}),
}


def world(page: str) -> World:
    """Return the state in which a page begins, by its path in the repository."""
    return WORLDS.get(page, World())
