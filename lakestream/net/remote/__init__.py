"""Connections to servers outside the cluster.

Belongs here: links as a client of another server (`remote { … }`), and leaf node connections to a nats-server.

In reading order:

- `remotes.py`: The remote servers of this server.
- `dial.py`: Dialling a remote server.
- `connection.py`: One client connection to a remote server.
- `outgoing.py`: Connections that this server opened.
- `link.py`: The link to a remote server: a client connection that is made again whenever it is lost.
- `domain.py`: The JetStream of a remote server as a domain here.
- `paths.py`: Paths: subscriptions on a remote whose messages are delivered to subjects here.
- `bodies.py`: Deliver subjects in the bodies of JetStream API requests to a remote server.
- `leaf_link.py`: A remote that this server is a leaf node of, so that its streams can be mirrored there.
- `leaf_connection.py`: One connection to the leaf node listener of a nats-server.
"""
