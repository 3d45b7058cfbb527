"""The protocol of Postgres: SQL over NATS for psql, drivers and BI tools.

Belongs here: the protocol without I/O, its types, logins, the catalogues of Postgres, and the program, which a server
with `sql { postgres { … } }` starts, and which is one of its clients.

In reading order:

- `wire.py`: The protocol of Postgres, version 3: messages as bytes.
- `scram.py`: SCRAM-SHA-256, the server's side.
- `types.py`: Types of Postgres: oids, values of results as text and binary, and values of parameters.
- `copy.py`: Formats of COPY TO STDOUT: text, CSV and binary.
- `errors.py`: Errors as clients of Postgres get them.
- `statements.py`: Statements of clients: their ends, their kinds, and the few that are answered here.
- `trees.py`: Queries as trees, by DuckDB's parser.
- `rows.py`: Rows of results: from SQL over NATS, or made here.
- `catalogue.py`: The catalogues of Postgres, pg_catalog and information_schema, over the tables of one user.
- `listener.py`: Connections of clients: bytes in and out, TLS, and limits.
- `logins.py`: Logins: a user of Postgres' protocol is a user of the server.
- `session.py`: The session of one client: prepared statements, portals, settings, and the order of messages.
- `program.py`: The program that serves the protocol of Postgres: `python -m lakestream_postgres.program`.
"""
