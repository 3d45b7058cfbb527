"""Commands of a NATS client: messages, streams, consumers, buckets and objects of any server with JetStream.

Belongs here: what a user of the `nats` command expects to find, with its names, flags and output where they are
sensible. nats-py does the work; each command is a few requests and what it prints.

In reading order:

- `session.py`: A connection for one command, requests to JetStream, and errors as lines.
- `shown.py`: Texts for people: durations, sizes and times in and out, records and tables.
- `messages.py`: `lakestream pub`, `sub` and `request`.
- `streams.py`: `lakestream stream`.
- `consumers.py`: `lakestream consumer`.
- `buckets.py`: `lakestream kv`.
- `objects.py`: `lakestream object`.
- `completion.py`: Names of a server's streams, consumers and buckets, for shells that complete a command line.
"""
