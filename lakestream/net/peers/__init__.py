"""Connections to the other nodes of the cluster.

Belongs here: dialling, the wire between nodes, requests over it, and routes of interest and messages.

In reading order:

- `cluster.py`: A node's part in a cluster.
- `standalone.py`: A server without other nodes.
- `peers.py`: The other nodes of the cluster.
- `dialler.py`: Dialling the other nodes.
- `handshake.py`: The handshake between nodes.
- `link.py`: One connection to another node.
- `calls.py`: Requests between nodes, each with one response.
- `routes.py`: Interest and messages between the nodes of the cluster.
- `remote_node.py`: Another node of the cluster, as this one sees it.
- `api_relay.py`: JetStream API requests of clients on a node without JetStream.
- `workers.py`: The connections between the workers of one server.
"""
