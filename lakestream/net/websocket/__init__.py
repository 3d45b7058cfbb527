"""Clients over WebSocket.

Belongs here: the handshake over HTTP, frames, and the transport through which a connection speaks in frames.

In reading order:

- `frames.py`: Frames of WebSocket, without I/O.
- `upgrade.py`: The record of an accepted WebSocket handshake.
- `handshake.py`: The handshake of WebSocket, without I/O.
- `transport.py`: A WebSocket between a socket and a connection.
"""
