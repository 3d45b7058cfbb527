"""The schema registry of an account, and the schemas by which publishes are checked.

Belongs here: the bucket of schemas, requests to the registry, and this node's copy of the bucket. Reading and comparing
schemas is in lakestream/schemas.

In reading order:

- `bucket.py`: The bucket of an account's schemas, `SCHEMAS`.
- `registration.py`: Registration of a version.
- `requests.py`: `$LAKE.API.SCHEMA.>`: requests of an account's clients to its schema registry.
- `settings.py`: The check of a stream's `lakestream.schema` and `lakestream.validate`, when it is created or updated.
- `follower.py`: This node's copy of an account's schemas.
- `definitions.py`: Checks of publishes against the schemas of an account.
- `calls.py`: Requests of the server itself to the API of an account.
"""
