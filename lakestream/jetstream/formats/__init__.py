"""How JetStream writes things down.

Belongs here: what a request is and how it is answered, error codes, JSON as Go writes and reads it, times, durations,
and the sending of advisories. Knows of no stream.
"""
