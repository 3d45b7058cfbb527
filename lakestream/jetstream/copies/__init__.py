"""Mirrors and sources: what a stream copies from others.

Belongs here: where a copy reads from, the session with its origin, how far it has come, and mirrors that begin as
clones.
"""
