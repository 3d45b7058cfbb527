"""Mirrors and sources: streams that hold messages of other streams.

Belongs here: sessions with origins, the positions in them, and mirrors that begin as clones of a table. Read
mirroring.py first.
"""
