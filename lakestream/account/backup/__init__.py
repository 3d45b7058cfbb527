"""Snapshot and restore of streams.

Belongs here: the archive format, its transfer in both directions, and the advisories about it.
"""
