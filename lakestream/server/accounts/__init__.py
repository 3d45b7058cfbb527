"""Accounts and users: who may do what, and what accounts have from each other.

Belongs here: authentication, permissions, subject mappings, exports, imports and the answers that cross accounts.
"""
