"""Consumers: selection, delivery, acknowledgement and redelivery of a stream's messages.

Belongs here: one consumer's configuration, its state, and its delivery to pull requests or a push subject. Read
consumer.py first.
"""
