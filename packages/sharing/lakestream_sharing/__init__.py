"""Delta Sharing: tables of the lake for recipients without credentials to the store (`lakestream sharing serve`).

Belongs here: the protocol without I/O (`errors.py`, `requests.py`, `actions.py`, `predicates.py`), tokens
(`grants.py`), signed URLs (`signing.py`), reading tables (`tables.py`), looking up tokens over NATS (`access.py`), the
HTTP application over all of them (`app.py`), its process (`program.py`), in which the server has no part, and the
commands (`command.py`).

Source: Delta Sharing protocol, "Delta Sharing Specification".
"""
