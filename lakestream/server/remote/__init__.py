"""Servers that this one is a client or a leaf node of.

Belongs here: a link's life and login, what of its subjects comes here under which name (remote { … }), and leaf
connections to a nats-server.
"""
