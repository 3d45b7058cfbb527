"""Groups: one log on one node or on several, and the owner's interface to it.

Belongs here: the group of one, the shell around the Raft core (disk, messages, ticks), and the callbacks of the owner.
"""
