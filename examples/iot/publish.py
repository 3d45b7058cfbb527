"""Publish a week of hourly readings of five sensors."""

import asyncio
import json
import math
import os
from datetime import datetime, timedelta

from lakestream.client import connect

SENSORS = {"hall.1": 15, "hall.2": 16, "hall.3": 17, "roof.1": 8, "roof.2": 9}
"""Mean temperatures on the first day."""


def reading(sensor, hour):
    at = datetime(2026, 5, 1) + timedelta(hours=hour)
    warmth = SENSORS[sensor] + hour // 24 + 6 * math.sin(2 * math.pi * (hour % 24 - 23) / 24)
    return json.dumps({"at": at.isoformat(timespec="minutes"), "celsius": round(warmth, 1)}).encode()


async def main():
    async with await connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as client:
        js = client.jetstream
        await js.add_stream(name="SENSORS", subjects=["sensors.>"], allow_direct=True)
        for hour in range(7 * 24):
            # Publish a round without waiting for each ack, then collect the acks: what is acked is on disk.
            acks = [await js.publish_async(f"sensors.{sensor}", reading(sensor, hour)) for sensor in SENSORS]
            await asyncio.gather(*acks)
        print(f"{7 * 24 * len(SENSORS)} readings of {len(SENSORS)} sensors stored")


asyncio.run(main())
