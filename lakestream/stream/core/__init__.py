"""The core of a stream: configuration, decision, proposal, application.

Belongs here: the steps that every message takes, whatever features the stream uses.
"""
