"""Delta Sharing: tables of the lake for recipients without credentials to the store (`lakestream sharing serve`).

Belongs here: the protocol without I/O, tokens, signed URLs, reading tables, the HTTP application over them, and the
commands. `lakestream sharing serve` is a process of its own: it reads the lake and is a client of the server.

Source: Delta Sharing protocol, "Delta Sharing Specification".

In reading order:

- `errors.py`: Errors of Delta Sharing, as recipients see them.
- `requests.py`: Requests of recipients, decoded and checked.
- `actions.py`: Lines of responses, in the formats parquet and delta.
- `predicates.py`: Hints of queries: files that cannot have rows for a condition are left out.
- `grants.py`: Tokens of recipients and what each may read.
- `access.py`: Tokens over NATS: the entries of a token, as the server has them now.
- `signing.py`: Signed texts: URLs of files of a lake in a directory, and tokens that continue a list or renew URLs.
- `slots.py`: Places for downloads, shared among recipients.
- `tables.py`: Tables of one account for recipients: their versions, files and changes.
- `app.py`: Delta Sharing over HTTP: the application of `lakestream sharing serve`.
- `program.py`: The process that serves Delta Sharing.
- `issuing.py`: Issuing, listing and revoking tokens.
- `command.py`: `lakestream sharing`: Delta Sharing, its server and its tokens.
"""
