"""`lakestream bench`: what a server does in a second, and how long a client waits.

Belongs here: the workloads over nats-py, in processes of their own, plots of their samples, and the command with its
table. Any NATS server with JetStream can be measured.

In reading order:

- `command.py`: `lakestream bench`: workloads against a running NATS server.
- `client.py`: One client of `lakestream bench`, as a process of its own.
- `plot.py`: Plots of series over time: in the terminal, and as SVG.
"""
