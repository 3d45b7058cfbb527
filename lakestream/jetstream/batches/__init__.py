"""Batches of messages, atomic and fast (ADR-50).

Belongs here: what is gathered, judged and answered for a batch before its messages take the way of any other.
"""
