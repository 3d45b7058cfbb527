"""Leaf nodes: the listener for them, and the servers that this one joins as one.

Belongs here: everything about a leaf connection that joins two accounts. A connection that only lets a nats-server read
streams of this server (`remote { url: nats-leaf:// }`) is in net/remote/.

In reading order:

- `nodes.py`: The leaf nodes of a server.
- `accepted.py`: One accepted leaf connection.
- `dialled.py`: A server that this one joins as a leaf node.
- `packing.py`: Compression of a leaf connection.
- `exchange.py`: The exchange of one leaf connection that is up: interest and messages of one account.
- `rights.py`: Rights of a leaf connection.
- `account.py`: The interest of an account, as leaf connections announce it.
"""
