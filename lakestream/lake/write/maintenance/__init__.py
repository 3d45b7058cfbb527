"""Keeping tables small, quick to open and clean.

Belongs here: OPTIMIZE, VACUUM, log cleanup, secure deletes in files, and making clones independent.
"""
