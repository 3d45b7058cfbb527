"""JetStream on several nodes.

Belongs here: the meta group and what it agrees on, where streams are placed, moved and scaled, this node's replicas,
and requests on their way to the node that answers them. Consensus itself is in lakestream/raft.
"""
