"""SQL for clients, in processes of their own: the processes, and the service over NATS.

Belongs here: requests, limits and processes. packages/sql answers the queries, in those processes only: no query can
hold up the server.

In reading order:

- `service.py`: SQL over NATS: `$LAKE.API.SQL` in each account.
- `query.py`: One query over NATS, from the request to its last response.
- `last.py`: The last messages of streams for a query's process.
- `window.py`: Flow control of one query: batches that may be under way.
- `pool.py`: The processes of the service.
- `processes.py`: One process that answers queries (packages/sql/lakestream_sql/child.py).
- `micro.py`: Discovery of the service (ADR-32): `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`.
- `figures.py`: Figures of the service, for metrics and for discovery.
- `listeners.py`: Listeners of other protocols for SQL, each in a process of its own.
"""
