"""Assignments of streams to nodes, and this node's replicas.

Belongs here: proposing and applying assignments, the same with one node and with several. Accounts, connections and
configuration files are not known here: `account/` and `net/` implement the interfaces in ports.py.

In reading order:

- `ports.py`: Interfaces of the meta layer to the accounts above it and to the other nodes.
- `assignments.py`: Assignments: the streams that exist, and their nodes.
- `meta.py`: Proposing and applying assignments.
- `solo.py`: The meta layer of a server without other nodes: a cluster of one.
- `meta_group.py`: The meta group: the Raft group whose log holds the assignments of a cluster.
- `meta_join.py`: Joining the meta group.
- `meta_transfer.py`: Transfer of the meta group's state to a member that is too far behind.
- `node.py`: The meta layer of a node; a server without a cluster is the only node.
- `cluster.py`: The meta layer of a node of a cluster.
- `workers.py`: The meta layer of a worker: one of several processes that serve together as one server.
- `placement.py`: Choosing the nodes of a stream.
- `inventory.py`: Index of the streams by what a new one is checked against: subjects, reserved bytes, nodes.
- `local.py`: Acting on the assignments of this node.
- `scaling.py`: Steps of a membership change.
- `replicas.py`: The replicas on this node.
- `replica.py`: One stream's replica on this node: its group, its role, its files.
- `site.py`: Services that every replica of a node uses.
- `replica_files.py`: The files of the replicas of a node.
- `stores.py`: The files of the streams of a server.
- `recovery.py`: Opening the log of a group of one that was found on disk.
- `replica_transfer.py`: Transfer of a replica's state between nodes.
- `replica_repair.py`: Finding and repairing damage in the files of replicas while the server runs.
- `keeping.py`: The streams on the disk of a server without other nodes.
- `adoption.py`: Streams on the disk of a node of a cluster.
- `deleted_streams.py`: Deleted streams whose files the lake still needs.
- `requests.py`: Dispatching requests to the node that answers them.
- `shared.py`: Services that all accounts of a server share.
- `info.py`: Information about groups for clients.
- `changes.py`: Requests that are processed one at a time, and limits of requests.
- `read_index.py`: Read indexes for followers, from the leaders of their streams.
- `worker_load.py`: Balancing the load of workers.
- `worker_moves.py`: Moving a stream from one running worker to another.
"""
