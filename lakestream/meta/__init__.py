"""Assignments of streams to nodes, and this node's replicas.

Belongs here: proposing and applying assignments, the same with one node and with several. Accounts, connections and
configuration files are not known here: `account/` and `net/` implement the interfaces in ports.py.
"""
