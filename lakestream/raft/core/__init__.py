"""The Raft consensus algorithm without I/O.

Belongs here: terms, votes, replication, commitment, membership changes. Clocks, sockets and disks are the caller's.
"""
