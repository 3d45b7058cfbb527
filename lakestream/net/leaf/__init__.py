"""Leaf nodes: the listener for them, and the servers that this one joins as one.

Belongs here: everything about a leaf connection that joins two accounts. A connection that only lets a nats-server read
streams of this server (`remote { url: nats-leaf:// }`) is in net/remote/.
"""
