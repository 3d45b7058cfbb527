"""Which streams exist, on which nodes, and this node's replicas of them.

Belongs here: deciding and acting on assignments, the same with one node and with several. Accounts, connections and
configuration files are not known here: `account/` and `net/` implement the interfaces in ports.py.
"""
