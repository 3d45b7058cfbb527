"""What a server is told: nats.conf and flags.

Belongs here: the grammar (conf.py), which key sets which option, and the options as records.
"""
