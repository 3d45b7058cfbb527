"""HTTP/1.1 of every listener but that for WebSocket, around h11.

Belongs here: connections, their deadlines and limits, and what a handler of requests gets and returns. The handlers are
in ops/monitoring, ops/console, packages/spark and packages/sharing. h11 is imported only with a listener.

Why h11: it is a parser without I/O, as our own protocols are, so the TLS, the deadlines and the limits of addresses of
our listeners apply. The handshake of WebSocket needs it anyway.

In reading order:

- `exchange.py`: Requests and responses over HTTP, without I/O.
- `connection.py`: One connection over HTTP, and the limits of a listener's connections.
"""
