"""Connections to servers outside the cluster.

Belongs here: links as a client of another server (`remote { … }`), and leaf node connections to a nats-server.
"""
