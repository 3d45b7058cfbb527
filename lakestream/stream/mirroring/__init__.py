"""Mirrors and sources.

Belongs here: the session with an origin, the position in it, and mirrors that begin as clones of a table.
"""
