"""Bytes and texts of the protocols.

Belongs here: NATS commands, headers and subjects, the JSON of the API, times, and what nodes send each other.
"""
