"""JetStream as one account's clients see it.

Belongs here: the JSON API (api/), direct get (get/), snapshot and restore (backup/).
"""
