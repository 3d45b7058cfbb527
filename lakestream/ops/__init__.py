"""Observation of a running server.

Belongs here: monitoring pages, the web console, the system account, and files by which tools find the server.
"""
