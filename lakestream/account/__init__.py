"""JetStream for the clients of one account.

Belongs here: the JSON API (api/), direct get (get/), snapshot and restore (backup/).
"""
