"""The server's side of the lake.

Belongs here: staging segments and releasing them from the log, old messages for the event loop, clones for mirrors, and
requests of the lake's readers.

In reading order:

- `keeper.py`: The link between the server's streams and the lake.
- `stream_sync.py`: Synchronisation of one stream with its table in the lake.
- `early_seals.py`: Budget of early seals: when a stream's open segment is sealed before it is `seal_age` old.
- `history.py`: Old messages for the event loop.
- `tables.py`: The tables of the lake for monitoring.
- `presence.py`: Presence of the lake.
- `address.py`: This server's part in the lake's identity.
- `clones.py`: Clones of tables for mirrors, requested from the compactor.
- `deleted_streams.py`: Marking a deleted stream in the lake.
- `schema_export.py`: Export of registered schemas to the lake.
- `api.py`: Requests of clients about a stream's part of the lake.
- `last_api.py`: Requests for the last message of each subject: `$LAKE.API.LAST.<stream>`.
"""
