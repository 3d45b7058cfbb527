"""A stream, from a published message to its ack.

Belongs here: a stream's configuration and rules, what happens to a message on its way in (intake.py, publish.py),
what its log's entries do when they are committed (apply.py), and what lets messages go (limits.py, retention.py).
What clients ask in JSON is in ../api, what needs other nodes in ../cluster.
"""
