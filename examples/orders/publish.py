"""Publish 60 orders from three countries."""

import json
import os

from lakestream.client.sync import connect

COUNTRIES = ["de", "fr", "it"]

with connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as client:
    js = client.jetstream
    client.run(js.add_stream(name="ORDERS", subjects=["orders.>"], allow_direct=True))
    for number in range(60):
        order = {"id": number, "price": 12.45 + 2 * number}
        # The message id makes a second attempt harmless: the server stores each order once.
        headers = {"Nats-Msg-Id": f"order-{number}"}
        ack = client.run(js.publish(f"orders.{COUNTRIES[number % 3]}", json.dumps(order).encode(), headers=headers))
    print(f"60 orders stored, the last one is sequence {ack.seq}")
