"""The store of a stream: its log of segments, its indexes, its checkpoint, and their recovery.

Belongs here: everything that changes files of a stream, and the order in which it becomes durable.
"""
