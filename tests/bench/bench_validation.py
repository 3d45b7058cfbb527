"""Measure the check of publishes: `python -m tests.bench.bench_validation`.

Acked publishes of orders of 273 bytes (JSON, ten fields), 4,000 in flight, into streams with `lakestream.validate` off,
reject and tag, in turn: messages a second, and the server's processor time per message. The check alone is measured by
bench_schemas.

Figures: docs/typed-tables.md#cost
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path

from tests.bench.bench_scale import used
from tests.bench.bench_schemas import JSON_SCHEMA, compact, order
from tests.bench.load import Connection, Rate, blocks, pipelined, publish
from tests.servers import Kind, Server
from tests.wire import Wire

MODES = ("off", "reject", "tag")


def prepare(server: Server) -> None:
    """Register the schema, and make a stream for each mode."""
    with Wire(server.address) as wire:
        body = json.dumps({"format": "json", "text": json.dumps(JSON_SCHEMA)}).encode()
        answer = json.loads(wire.request("$LAKE.API.SCHEMA.ADD.orders", body).data)
        assert "error" not in answer, answer
        for mode in MODES:
            metadata = {"lakestream.schema": "orders@latest", "lakestream.validate": mode}
            config = {"name": mode, "subjects": [mode], "max_msgs": 100_000, "metadata": metadata}
            created = wire.api(f"STREAM.CREATE.{mode}", config)
            assert "error" not in created, created


def measure(server: Server, mode: str, seconds: float) -> tuple[Rate, float]:
    """Return (rate, µs of the server's processor time per message)."""
    chance = random.Random(1)
    payloads = [compact(order(chance)) for _ in range(2_000)]
    with Connection(server.address) as connection:
        reply = connection.inbox + b".1"
        prepared = blocks(lambda number: publish(mode.encode(), reply, payloads[number % len(payloads)]))
        pipelined(connection, prepared, most=10_000)
        before = used(server)
        rate = pipelined(connection, prepared, seconds=seconds)
        return rate, (used(server) - before) / rate.messages * 1e6


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round (default: 5)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="bench-validation-") as directory:
        server = Server(Kind.OURS, Path(directory) / "store", config="lake { enabled: false }")
        server.start()
        try:
            prepare(server)
            for _ in range(options.rounds):
                for mode in MODES:
                    rate, cost = measure(server, mode, options.seconds)
                    found[mode].append((cost, rate.per_s))
        finally:
            server.kill()
    least = min(cost for cost, _ in found["off"])
    print(f"{'validate':<10}{'msg/s':>10}{'µs a message':>14}{'more than off':>15}")
    for mode, rows in found.items():
        cost = min(cost for cost, _ in rows)
        print(f"{mode:<10}{max(rate for _, rate in rows):>10,.0f}{cost:>14.2f}{cost - least:>15.2f}")


if __name__ == "__main__":
    main()
