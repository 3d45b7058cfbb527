"""Connections and the routing of messages between them.

Belongs here: client connections, the hub, the interest graph, accounts and their permissions, connections to the other
nodes and to remote servers. Knows no stream: a stream is a subscriber.
"""
