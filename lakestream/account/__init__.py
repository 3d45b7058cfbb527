"""JetStream for the clients of one account.

Belongs here: requests of clients and their answers. What a stream does is in stream/, where it is placed in meta/.

In reading order:

- `engine.py`: The streams of one account.
- `engines.py`: The accounts of a server that have streams.
- `api/`: The JetStream API: subjects and their handlers.
- `get/`: Messages without a consumer: direct get (ADR-31), single and in batches.
- `backup/`: Snapshot and restore of streams.
- `schemas/`: The schemas of an account, by which publishes are checked.
- `use.py`: Storage of an account's streams on other nodes.
"""
