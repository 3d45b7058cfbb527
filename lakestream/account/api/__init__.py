"""The JetStream API: subjects and their handlers.

Belongs here: the handlers of `$JS.API.>`. The behaviour of a stream or a consumer is in lakestream/stream.
"""
