"""The monitoring port (/varz, /connz, /jsz …).

Belongs here: the listener of that port, and each page as a function of a query and the server's state (monitored.py).

In reading order:

- `monitored.py`: The server as monitoring and the system account see it.
- `query.py`: Query strings of the monitoring port.
- `port.py`: The monitoring port.
- `pages.py`: The monitoring pages.
- `connections.py`: The monitoring pages of clients: /connz and /subsz.
- `accounts.py`: The monitoring pages of accounts: /accountz and /accstatz.
- `jetstream.py`: The monitoring pages of JetStream.
- `routes.py`: The monitoring pages of other nodes.
- `workers.py`: The monitoring pages of a server that consists of several workers.
"""
