"""Storages of a lake: directories and buckets, their paths, locks, and the identity of a lake.

Rule: nothing here interprets a file's content, except for the file that makes a directory a lake.
"""
