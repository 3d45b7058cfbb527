"""Book some balances; each message replaces the account's one before it."""

import os

from nats.js.api import StreamConfig

from lakestream.client.sync import connect

BOOKINGS = [
    ("alice", 100, "teller-1"),
    ("bob", 50, "teller-1"),
    ("alice", 70, "teller-2"),
    ("bob", 80, "teller-2"),
    ("alice", 0, "closing"),
]

with connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as client:
    js = client.jetstream
    config = StreamConfig(name="BALANCES", subjects=["balances.*"], max_msgs_per_subject=1, allow_direct=True)
    config.metadata = {"lakestream.time_travel": "365d"}
    client.run(js.add_stream(config))
    for account, balance, by in BOOKINGS:
        client.run(js.publish(f"balances.{account}", str(balance).encode(), headers={"By": by}))
        print(f"booked: {account} {balance} by {by}")
    client.run(js.purge_stream("BALANCES", subject="balances.bob"))
    print("removed: all of bob's records")
