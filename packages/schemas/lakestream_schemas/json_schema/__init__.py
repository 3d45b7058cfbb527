"""JSON Schema: its columns, its codec, and the comparison of versions.

Belongs here: all that knows this format. Nothing here knows another one.

In reading order:

- `bounds.py`: Bounds of the work that a JSON Schema can cause.
- `shapes.py`: Mapping of JSON Schema to columns, and to the types by which msgspec decodes and checks in one step.
- `nodes.py`: Plan of a JSON Schema, for reading batches straight into columns.
- `skeleton.py`: Spelling of a JSON payload without its values: what gives the bytes back, together with the columns.
- `spelling.py`: JSON payloads back from columns, byte for byte.
- `values.py`: Conversion of one JSON value to what its column takes.
- `codec.py`: Codec of JSON payloads that have a JSON Schema.
- `compatibility.py`: Comparison of two JSON Schemas: does the second allow all that the first allows?
"""
