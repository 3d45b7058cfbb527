"""Connections to the other nodes of the cluster.

Belongs here: dialling, the wire between nodes, requests over it, and routes of interest and messages.
"""
