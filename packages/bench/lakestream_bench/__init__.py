"""`lakestream bench`: what a server does in a second, and how long a client waits.

Belongs here: the workloads over nats-py, in processes of their own (`client.py`), plots of their samples (`plot.py`),
and the command with its table (`command.py`). Any NATS server with JetStream can be measured.
"""
