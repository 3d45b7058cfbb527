"""A server's side of the lake.

Belongs here: segments on their way into the staging area and out of the log, old messages for the event loop, copies
of tables for mirrors, and what readers of the lake ask the server.
"""
