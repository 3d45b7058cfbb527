"""The schemas of an account, by which publishes are checked.

Belongs here: the bucket of schemas, and this node's copy of it. Reading schemas is in lakestream/schemas, requests to
the registry are in packages/schemas.

In reading order:

- `bucket.py`: The bucket of an account's schemas, `SCHEMAS`.
- `settings.py`: The check of a stream's `lakestream.schema` and `lakestream.validate`, when it is created or updated.
- `follower.py`: This node's copy of an account's schemas.
- `definitions.py`: Checks of publishes against the schemas of an account.
- `calls.py`: Requests of the server itself to the API of an account.
"""
