"""Accounts and users of a running server.

Belongs here: authentication, permissions, imports and exports, and replies across accounts.
"""
