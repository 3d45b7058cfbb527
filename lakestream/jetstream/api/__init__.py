"""The JetStream API: subjects, requests and their answers.

Belongs here: which subject leads to which handler (subjects.py), and the handlers of `$JS.API.STREAM`,
`$JS.API.CONSUMER`, accounts and the system. What a stream or a consumer does is its own folder's.
"""
