"""SQL over NATS, in the server: the service `$LAKE.API.SQL`.

Belongs here: requests, their limits, and responses. Queries are answered in processes of their own
(lakestream/ops/sql/processes.py, child.py): none can hold up the server.

In reading order:

- `service.py`: SQL over NATS: `$LAKE.API.SQL` in each account.
- `query.py`: One query over NATS, from the request to its last response.
- `figures.py`: Figures of the service, for metrics and for discovery.
- `micro.py`: Discovery of the service (ADR-32): `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`.
"""
