"""Clients over WebSocket.

Belongs here: the handshake over HTTP, frames, and the transport through which a connection speaks in frames.
"""
