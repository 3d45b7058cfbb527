"""Import and export: any table as messages, and messages as any table.

Belongs here: reading and writing tables of any origin, and the mapping of columns in both directions.
"""

JSON = "json"
"""Option of an import: the payload is the JSON of columns."""
OWN = ("subject", "seq", "time", "time_ns", "headers", "data", "header_block", "subject_bytes", "text")
"""Columns of every message. `text`: the payload as UTF-8. All but `text` together give every message back."""
