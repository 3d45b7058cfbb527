"""A consumer: which messages it wants, how they reach clients, and what became of each.

Belongs here: configuration and rules, the way from the log or the lake to a pull request or a push subject, acks and
redelivery. Read consumer.py first: it names the parts.
"""
