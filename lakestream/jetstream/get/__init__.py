"""Messages without a consumer: direct get (ADR-31), and streams as they were.

Belongs here: what may be asked, finding it, and answers in batches.
"""
