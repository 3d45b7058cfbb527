"""The configuration of a server: nats.conf and flags.

Belongs here: the grammar, the options as records, and the checks between them.
"""
