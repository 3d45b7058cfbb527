"""The other nodes: connections to them, and clients' interest and messages between them.

Belongs here: dialling and the wire between nodes (peer_*.py), calls over it, routes of interest and messages, and
which files this node's replicas have.
"""
