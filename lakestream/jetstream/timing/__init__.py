"""What comes due by the clock.

Belongs here: age and TTL of messages, delete markers, and message schedules with their rules and expressions.
"""
