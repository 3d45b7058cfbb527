"""Assignments of streams and consumers to nodes.

Belongs here: the meta group and its state, placement, replicas on this node, and their transfer, scaling and moving.
"""
