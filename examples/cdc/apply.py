"""Apply change events to a bucket, then read it as it is and as it was."""

import asyncio
import json
import os

from nats.js.api import StreamConfig

from lakestream.client import connect


async def apply(js, event):
    """Write one event to the bucket. A delete is a marker, as nats-py's `kv.delete` writes it."""
    row = event["after"] or event["before"]
    headers = {"Nats-Msg-Id": f"lsn-{event['source']['lsn']}"}
    if event["op"] == "d":
        headers["KV-Operation"] = "DEL"
    value = b"" if event["op"] == "d" else json.dumps(row).encode()
    await js.publish(f"$KV.shop.{event['source']['table']}.{row['id']}", value, headers=headers)


async def main():
    async with await connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as client:
        js = client.jetstream
        config = StreamConfig(name="KV_shop", subjects=["$KV.shop.>"], max_msgs_per_subject=1, allow_direct=True)
        config.allow_rollup_hdrs, config.metadata = True, {"lakestream.time_travel": "30d"}
        await js.add_stream(config)
        events, count = await js.pull_subscribe("cdc.shop.customers", durable="to_bucket"), 0
        while (await events.consumer_info()).num_pending:
            for message in await events.fetch(100, timeout=1):
                await apply(js, json.loads(message.data))
                await message.ack()
                count += 1
        print(f"applied {count} events")
        bucket = await js.key_value("shop")
        for key in sorted(await bucket.keys()):
            print(f"{key}: {(await bucket.get(key)).value.decode()}")
        then = [json.loads(entry.value) async for entry in client.bucket("shop").at(seq=3).items("customers.*")]
        rows = ", ".join(
            f"{row['id']} {row['name']} in {row['city']}" for row in sorted(then, key=lambda row: row["id"])
        )
        print("before the last three changes:", rows)


asyncio.run(main())
