"""Features of a stream, one module each.

Belongs here: rules and state beyond storing messages in order: deduplication, TTL, schedules, counters, batches,
republishing, secure deletion, traces.
"""
