"""From staged segments to Delta tables.

Belongs here: the streaming query and its source, what one commit has to do, and what a table's metadata and layout
are. Read compactor.py, then compaction.py.
"""
