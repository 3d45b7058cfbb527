"""SQL for clients, in processes of their own: no query can hold up the server.

Belongs here: the processes. packages/sql answers the queries in them, shares them out, and has the service over NATS.

In reading order:

- `processes.py`: One process that reads the lake for a server: for a query (packages/sql/lakestream_sql/child.py), or a
  restore.
- `listeners.py`: Listeners of other protocols for SQL, each in a process of its own.
"""
