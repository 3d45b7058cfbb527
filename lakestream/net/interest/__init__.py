"""The interest graph: subscriptions by subject.

Belongs here: the trie for wildcards and the cache of match results.

In reading order:

- `subscription.py`: Subscriptions and their sinks.
- `trie.py`: Filters with wildcards, by token.
- `cache.py`: Caches of the interest graph.
- `interest.py`: The interest graph of an account.
"""
