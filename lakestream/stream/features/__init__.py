"""Features of a stream, one module each.

Belongs here: rules and state beyond storing messages in order: deduplication, TTL, schedules, counters, batches,
republishing, secure deletion, traces.

In reading order:

- `expected.py`: Optimistic concurrency: publishes that expect a state of the stream (ADR-8).
- `dedupe.py`: Message ids: publishes that repeat a message of the duplicate window are not stored again
  (docs/internals/streams.md#publish-headers).
- `ttl.py`: Lifetimes of single messages: the header `Nats-TTL` (ADR-43, docs/internals/streams.md#ttls-and-markers).
- `ages.py`: Ages of the messages of a stream.
- `expiry.py`: Expiry: messages whose time has run out (max_age and `Nats-TTL`), and the delete markers that take their
  place.
- `rollup.py`: Rollups: messages that replace earlier ones, of their subject or of the whole stream.
- `counters.py`: Counters: subjects whose messages add up (ADR-49, docs/internals/streams.md#counters).
- `subject_transform.py`: Subject transforms: a stream keeps messages under other subjects than they were published to.
- `republish.py`: Republishing: what a stream has stored goes out again under another subject
  (docs/internals/streams.md#transforms-and-republishing).
- `schedule_rules.py`: Headers of message schedules: when a schedule fires, what it produces, and what is refused.
- `cron.py`: Cron expressions of six fields, and when they fire next on the clock of a time zone.
- `schedules.py`: The message schedules of one stream.
- `batches.py`: Common parts of atomic and fast batches (ADR-50).
- `atomic.py`: Atomic batches: messages that a stream stores all together or not at all (ADR-50,
  docs/internals/streams.md#atomic-batches).
- `fast.py`: Fast batches: many messages with few answers, at the pace that the server gives (ADR-50,
  docs/internals/streams.md#fast-batches).
- `validation.py`: Validation: publishes are checked against their schemas before they are stored.
- `async_persist.py`: Streams whose acks do not wait for the disk: `persist_mode: async`.
- `secure_delete.py`: Secure deletion: the bytes of deleted messages leave the log.
- `time_travel.py`: Time travel: a stream as it was.
- `ack_latency.py`: Time from publish to pub ack, for monitoring.
- `traces.py`: Message tracing on the way into a stream.
- `spans.py`: Spans of messages with `traceparent`, for OpenTelemetry.
- `message_ids.py`: Message ids of the duplicate window: in memory, and beyond a bound on disk.
"""
