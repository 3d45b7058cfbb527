"""Summarise the first and the last day of the sensors on the roof."""

import os

import polars as pl

from lakestream.client.sync import connect

with connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as client:
    messages = client.to_polars("SENSORS", ["subject", "data"], subject="sensors.roof.*")

readings = messages.select(
    sensor=pl.col("subject").str.strip_prefix("sensors."),
    reading=pl.col("data").cast(pl.String).str.json_decode(pl.Struct({"at": pl.String, "celsius": pl.Float64})),
).unnest("reading")
days = (
    readings.group_by(day=pl.col("at").str.head(10), sensor="sensor")
    .agg(lowest=pl.min("celsius"), mean=pl.mean("celsius"), highest=pl.max("celsius"))
    .sort("day", "sensor")
)
print("day         sensor  lowest  mean  highest")
for day, sensor, lowest, mean, highest in days.rows():
    if day in ("2026-05-01", "2026-05-07"):
        print(f"{day}  {sensor}  {lowest:6.1f}  {mean:4.1f}  {highest:7.1f}")
