"""Import and export: any table as messages, and messages as any table.

Belongs here: reading and writing tables of any origin, and the mapping of columns in both directions.

In reading order:

- `finding.py`: Finding what an import reads: the files of a source, their format, and an id of their contents.
- `tabular.py`: Tables of any origin, read and written as record batches.
- `text.py`: Text sources: CSV and JSON lines, read so that every value keeps its spelling.
- `csv_types.py`: Types of CSV fields, which have them only on request (`--types`, `--infer`).
- `mapping.py`: Mapping rows of any table to messages.
- `text_mapping.py`: Mapping rows of text files to messages: CSV fields and JSON lines, in their spelling.
- `unmapping.py`: Mapping messages to rows of a plain table.
"""

JSON = "json"
"""Option of an import: the payload is the JSON of columns."""
OWN = ("subject", "seq", "time", "time_ns", "headers", "data", "header_block", "subject_bytes", "text")
"""Columns of every message. `text`: the payload as UTF-8. All but `text` together give every message back."""
