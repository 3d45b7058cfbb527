"""Consumers: selection, delivery, acknowledgement and redelivery of a stream's messages.

Belongs here: one consumer's configuration, its state, and its delivery to pull requests or a push subject. Read
consumer.py first.

In reading order:

- `config.py`: A consumer's configuration: its fields as they are on the wire.
- `rules.py`: Rules of consumer configurations: defaults, checks and updates.
- `start.py`: The start of a new consumer.
- `consumers.py`: All consumers of one stream, as one part of it.
- `filter_index.py`: Index from subject filters to the consumers of one stream.
- `consumer.py`: A consumer: its parts, its life, and its side of the stream's log.
- `feed.py`: The feed: new messages for a consumer, in order, from the log or from the lake.
- `selection.py`: Selections: counting and finding the messages of a stream that match a consumer's filters.
- `read_ahead.py`: Read-ahead: runs of messages from the lake, read before a consumer asks for them.
- `delivery.py`: Delivery: a consumer's messages on their way to its target.
- `target.py`: Delivery targets: the receivers of a consumer's messages.
- `pull_request.py`: Pull requests: reading and checking one, and its state and times while it waits.
- `pull.py`: Pull consumers: the queue of waiting requests as a delivery target.
- `priority.py`: Priority policies of pull consumers (ADR-42): which waiting request gets the next message.
- `push.py`: Push consumers: the deliver subject as a delivery target.
- `acks.py`: Acks: the replies of clients to delivered messages.
- `redelivery.py`: Redelivery: which delivered messages are delivered again, and when.
- `ledger.py`: The ledger: a consumer's state, and how that is written to the log.
- `retention.py`: Interest and work-queue retention: removal of messages that no consumer needs any more.
- `lifetime.py`: Removal of a consumer after inactivity (inactive_threshold), and pausing until a time, each with its
  one timer.
- `info.py`: ConsumerInfo, as replies and monitoring show it (docs/internals/api.md#consumers), in the field order of
  nats-server.
- `advisories.py`: Advisories and metrics about one consumer.
- `spans.py`: Spans of deliveries and acks of messages with `traceparent`, for OpenTelemetry.
- `dead_letters.py`: Dead letters: messages that a consumer gives up, published to a subject of their own before they
  are dropped.
- `order_by_key.py`: Order by key: a consumer's clients have one message of a key at a time, in the order of the stream.
"""
