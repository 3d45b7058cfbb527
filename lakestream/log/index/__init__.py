"""Indexes over the messages of a stream: live sequences, and the sequences of each subject.

Belongs here: the data structures, in memory and in blocks on disk. Nothing here knows segments.
"""
