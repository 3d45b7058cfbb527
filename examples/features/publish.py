"""Publish eight weeks of purchases of 40 customers."""

import asyncio
import json
import os
import random

from lakestream.client import connect

DAY = 24 * 3600


async def main():
    dice = random.Random(1)
    async with await connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as client:
        js = client.jetstream
        await js.add_stream(name="PURCHASES", subjects=["purchases.*"], allow_direct=True)
        times = sorted(dice.randrange(56 * DAY) for _ in range(1200))
        for start in range(0, len(times), 100):
            acks = []
            for second in times[start : start + 100]:
                customer = min(dice.randrange(40), dice.randrange(40))  # customers with low numbers buy more often
                purchase = {"second": second, "price": round(5 + customer / 2 + dice.random() * 40, 2)}
                acks.append(await js.publish_async(f"purchases.{customer}", json.dumps(purchase).encode()))
            await asyncio.gather(*acks)
    print("1200 purchases of 40 customers stored")


asyncio.run(main())
