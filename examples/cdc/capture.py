"""Publish the changes of a table as Debezium would: a snapshot (r), then creates, updates and deletes."""

import json
import os

from lakestream.client.sync import connect

ROWS = {
    1: {"id": 1, "name": "Ann", "city": "Bern"},
    2: {"id": 2, "name": "Bob", "city": "Oslo"},
    3: {"id": 3, "name": "Cem", "city": "Kiel"},
}
CHANGES = [
    ("r", None, ROWS[1]),
    ("r", None, ROWS[2]),
    ("c", None, ROWS[3]),
    ("u", ROWS[1], {**ROWS[1], "city": "Lyon"}),
    ("d", ROWS[2], None),
    ("u", ROWS[3], {**ROWS[3], "city": "Rome"}),
]

with connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as client:
    js = client.jetstream
    client.run(js.add_stream(name="CDC", subjects=["cdc.shop.*"], allow_direct=True))
    done = []
    for lsn, (op, before, after) in enumerate(CHANGES, 1):
        event = {"op": op, "before": before, "after": after, "source": {"table": "customers", "lsn": lsn}}
        client.run(js.publish("cdc.shop.customers", json.dumps(event).encode(), headers={"Nats-Msg-Id": str(lsn)}))
        done.append(f"{op} {(after or before)['id']}")
    print("published", ", ".join(done))
