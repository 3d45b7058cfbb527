"""The server's side of the lake.

Belongs here: staging segments and releasing them from the log, old messages for the event loop, clones for mirrors, and
requests of the lake's readers.
"""
