"""Streams: everything that one stream does on one node.

Belongs here: the core, which takes a message from its publisher to its ack, and a list of features, which add rules and
steps to it. The core knows no feature, and no feature knows another folder's; assembly.py alone names them all.

In reading order:

- `core/`: The core of a stream: configuration, decision, proposal, application.
- `assembly.py`: Assembly: the list of a stream's features, and the stream that is made of the core and all of them.
- `rules.py`: Which stream configurations are allowed.
- `features/`: Features of a stream, one module each.
- `consumer/`: Consumers: selection, delivery, acknowledgement and redelivery of a stream's messages.
- `mirroring/`: Mirrors and sources: streams that hold messages of other streams.
- `acks.py`: Ack subjects: the consumers that the replies of clients are for.
- `info.py`: Streams as JSON.
- `awaiting.py`: Callbacks as something to wait for.
- `dormant.py`: Streams that are known and not open.
"""
