"""Metrics of a server: `/metrics` of the monitoring port.

Belongs here: the descriptions of the metrics (names.py), reading them from the server's state (server.py), and
answering scrapes without holding up the event loop (scrapes.py).

In reading order:

- `names.py`: The metrics of a server.
- `server.py`: Reading the metrics of a server from its state.
- `scrapes.py`: Answering scrapes.
"""
