"""A server of several processes: its supervisor, the part of each worker, and the directories of their streams.

Belongs here: what only such a server has. How workers share streams is in meta/workers.py, how they are connected in
net/peers/workers.py, how monitoring adds them up in ops/monitoring/workers.py.

In reading order:

- `supervisor.py`: The process that starts the workers of a server and keeps them running.
- `worker.py`: One worker's part in its server.
- `stores.py`: The directories of the workers' streams.
"""
