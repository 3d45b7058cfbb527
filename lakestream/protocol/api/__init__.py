"""Requests and replies of the JetStream API as JSON.

Belongs here: decoding of requests, encoding of replies and advisories, and error codes. Knows of no stream.
"""
