"""The JetStream API: subjects and their handlers.

Belongs here: the handlers of `$JS.API.>`. The behaviour of a stream or a consumer is in lakestream/stream.

In reading order:

- `subjects.py`: The JetStream API as subjects.
- `first_use.py`: Requests whose handlers are loaded with the first of them.
- `find.py`: Finding streams by name, and their StreamInfo.
- `streams.py`: `$JS.API.STREAM.>`: requests about streams.
- `subject_pages.py`: Message counts of the subjects of a stream, one page at a time.
- `messages.py`: Requests about single messages of a stream.
- `consumers.py`: `$JS.API.CONSUMER.>`: requests about consumers.
- `account.py`: Account information.
- `peers.py`: Requests of an account's clients about leaders and peers of its streams.
- `moves.py`: Moving streams to other nodes.
- `operator_requests.py`: Requests of the system account: the cluster's nodes, and the streams of all accounts.
- `system.py`: The JetStream API of the system account.
- `transfer.py`: Moving whole messages in and out of a stream, for `lakestream import` and `lakestream export`.
"""
