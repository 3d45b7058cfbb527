"""Messages without a consumer: direct get (ADR-31), single and in batches.

Belongs here: the query, its resolution to sequences, and the replies.

In reading order:

- `query.py`: Requests for stored messages.
- `direct.py`: Direct get: stored messages without a consumer and without JSON answers (ADR-31,
  docs/internals/api.md#direct-get).
- `batch.py`: Direct gets that are answered with several messages.
"""
