"""The schema registry of an account, and the schemas by which publishes are checked.

Belongs here: the bucket of schemas, requests to the registry, and this node's copy of the bucket. Reading and comparing
schemas is in lakestream/schemas.
"""
