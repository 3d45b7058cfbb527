"""Print the last reading of each sensor."""

import json
import os
import time

from lakestream.client.sync import connect

with connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as client:
    now = client.as_of("SENSORS", time.time_ns(), exact=False)  # exact: only needed for times in the past
    for message in sorted(now.last("sensors.>"), key=lambda message: message.subject):
        reading = json.loads(message.data)
        print(f"{message.subject.removeprefix('sensors.')}  {reading['celsius']:.1f} °C at {reading['at']}")
