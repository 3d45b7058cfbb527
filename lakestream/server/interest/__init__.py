"""Who listens to what.

Belongs here: the interest graph, the trie for wildcards, and results kept until interest changes.
"""
