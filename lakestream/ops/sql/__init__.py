"""SQL for clients, in processes of their own: no query can hold up the server.

Belongs here: the processes. packages/sql answers the queries in them, and has the service over NATS.

In reading order:

- `processes.py`: One process that answers queries (packages/sql/lakestream_sql/child.py).
- `question.py`: A query that is put to its process.
- `pool.py`: The processes that answer queries, of the service over NATS or of the console.
- `listeners.py`: Listeners of other protocols for SQL, each in a process of its own.
"""
