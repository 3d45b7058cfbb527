"""Streams: everything that one stream does on one node.

Belongs here: the core that takes a message from its publisher to its ack (core/), features that add a rule or a step
to it (features/), consumers (consumer/), and mirrors and sources (mirroring/).
"""
