"""Messages without a consumer: direct get (ADR-31), single and in batches.

Belongs here: the query, its resolution to sequences, and the replies.
"""
