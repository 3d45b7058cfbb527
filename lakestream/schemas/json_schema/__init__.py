"""JSON Schema: its columns, its codec, and the comparison of versions.

Belongs here: all that knows this format. Nothing here knows another one.
"""
