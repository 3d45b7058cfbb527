"""The schema registry of an account, in the server.

Belongs here: requests to the registry. The bucket of schemas, and the checks of publishes, are lakestream's
(lakestream/account/schemas); the server loads this with the first request, or the bucket.

In reading order:

- `requests.py`: `$LAKE.API.SCHEMA.>`: requests of an account's clients to its schema registry.
- `registration.py`: Registration of a version.
"""
