"""Clients and leaf nodes over WebSocket.

Belongs here: the handshake over HTTP, frames, and the transport through which a connection speaks in frames.

In reading order:

- `frames.py`: Frames of WebSocket, without I/O.
- `upgrade.py`: The records of WebSocket handshakes that succeeded.
- `handshake.py`: The handshake of WebSocket, without I/O.
- `framed.py`: A transport that speaks in frames.
- `transport.py`: WebSockets that clients and leaf nodes open.
- `dialled.py`: WebSockets that this server dials.
"""
