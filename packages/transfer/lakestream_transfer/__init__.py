"""`lakestream import` and `lakestream export`: any table as messages, and messages as any table.

Belongs here: both commands, reading and writing tables of any origin, and the mapping of columns in both directions.

In reading order:

- `finding.py`: Finding what an import reads: the files of a source, their format, and an id of their contents.
- `tabular.py`: Tables of any origin, read and written as record batches.
- `text.py`: Text sources: CSV and JSON lines, read so that every value keeps its spelling.
- `csv_types.py`: Types of CSV fields, which have them only on request (`--types`, `--infer`).
- `mapping.py`: Mapping rows of any table to messages.
- `text_mapping.py`: Mapping rows of text files to messages: CSV fields and JSON lines, in their spelling.
- `unmapping.py`: Mapping messages to rows of a plain table.
- `sending.py`: Putting messages into a stream, each once.
- `importing.py`: One run of an import: the messages of a source, and the stream that takes them, each once.
- `command.py`: `lakestream import` and `lakestream export`: tables into streams, streams into tables.
"""
