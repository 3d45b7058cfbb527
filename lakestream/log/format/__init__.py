"""Bytes of the log: records, frames, segment files, outlines, and the file operations that carry them.

Belongs here: layouts, encoding and decoding. Nothing here knows the state of a stream.
"""
