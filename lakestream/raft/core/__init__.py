"""The Raft consensus algorithm without I/O.

Belongs here: terms, votes, replication, commitment, membership changes. Clocks, sockets and disks are the caller's.

In reading order:

- `messages.py`: Messages between the members of a group.
- `ready.py`: Output of the Raft core and its options.
- `terms.py`: Terms of the entries of a log.
- `log_view.py`: The core's view of its own log.
- `state.py`: State of a member, shared by all roles.
- `core.py`: The Raft core of one member of one group.
- `election.py`: Leader election.
- `leader.py`: Leadership of one term.
- `progress.py`: Progress of one other member, as its leader knows it.
- `follower.py`: Handling of the leader's messages.
- `reads.py`: Linearizable reads.
- `confirmed.py`: Detection of disks that were rolled back: a member holds less than it had confirmed.
- `restore.py`: Damaged logs without a leader: what their members may do, and how they get back what they had.
"""
