"""The assembly of a server from its parts.

Belongs here: construction, start, reload and stop of a node, and the connection between JetStream and the lake
(lake/).
"""
