"""The staging area: sealed segments that wait for compaction, and the notes of server and compactor beside them.

Rule: it knows the staging directories of streams, and no table.
"""
