"""Streams as backups: snapshot and restore.

Belongs here: what an archive holds, its flow in both directions, and the advisories about it.
"""
