"""Tables of mirrors that begin as clones.

Belongs here: what a server and the compactor say to each other about one, which version it begins with, and making
it.
"""
