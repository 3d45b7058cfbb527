"""Groups: one log on one node or on several, and the owner's interface to it.

Belongs here: the group of one, the shell around the Raft core (disk, messages, ticks), and the callbacks of the owner.

In reading order:

- `group.py`: The interface between a group and the owner of its log.
- `ports.py`: Interfaces through which groups reach other nodes and clocks.
- `solo.py`: A group of one: this node is its only member.
- `raft_group.py`: A Raft group: the shell around the Raft core, with a log, a hard state and peers.
- `member.py`: This node's part in a Raft group before its log is open.
- `disk.py`: Disk work of members, in I/O threads.
- `unstable.py`: The newest entries of a member's log, in memory: unstable ones, and recent stable ones.
- `hard_state.py`: The hard state of a member, in the file `raft` of the group's directory.
- `outgoing.py`: Messages that a member sends.
- `callbacks.py`: Calling the owner of a Raft group.
- `groups.py`: All Raft groups of a node, on the same connections and the same timer.
"""
