"""The interest graph: subscriptions by subject.

Belongs here: the trie for wildcards and the cache of match results.
"""
