"""Compute features and labels of each customer, and fit a linear model."""

import os

import numpy as np
import polars as pl

from lakestream.client.sync import connect

DAY = 24 * 3600
CUTOFF = 49 * DAY
FEATURES = ["purchases", "mean_price", "days_since_last", "last_week"]

with connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as client:
    messages = client.to_polars("PURCHASES", ["subject", "data"])

purchases = messages.select(
    customer=pl.col("subject").str.strip_prefix("purchases.").cast(pl.Int64),
    purchase=pl.col("data").cast(pl.String).str.json_decode(pl.Struct({"second": pl.Int64, "price": pl.Float64})),
).unnest("purchase")
before, after = purchases.filter(pl.col("second") < CUTOFF), purchases.filter(pl.col("second") >= CUTOFF)
features = before.group_by("customer").agg(
    purchases=pl.len(),
    mean_price=pl.mean("price"),
    days_since_last=(CUTOFF - pl.max("second")) // DAY,
    last_week=pl.col("price").filter(pl.col("second") >= CUTOFF - 7 * DAY).sum(),
)
labels = after.group_by("customer").agg(label=pl.sum("price"))
table = features.join(labels, "customer", "left").with_columns(pl.col("label").fill_null(0.0)).sort("customer")

inputs = np.column_stack([table.select(FEATURES).to_numpy(), np.ones(table.height)])
label = table["label"].to_numpy()
weights, *_ = np.linalg.lstsq(inputs, label, rcond=None)
print(f"{table.height} customers, features: {', '.join(FEATURES)}")
_, count, mean, days, week, label_of_first = table.row(0)
print(f"first customer: {count} purchases, mean {mean:.2f}, {days} days ago, {week:.2f} in the last week,", end=" ")
print(f"label {label_of_first:.2f}")
errors = np.abs(inputs @ weights - label).mean(), np.abs(label.mean() - label).mean()
print(f"mean error of the model {errors[0]:.2f}, of the mean {errors[1]:.2f}")
