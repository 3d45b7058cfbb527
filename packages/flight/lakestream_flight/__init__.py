"""Flight SQL: SQL over NATS for clients of ADBC, JDBC and Arrow.

Belongs here: the few messages of Protocol Buffers, logins, and the program, which a server with `sql { flight: … }`
starts, and which is one of its clients.

In reading order:

- `messages.py`: Commands and actions of Flight SQL.
- `logins.py`: Logins of Flight SQL: connections to the server, kept by tokens.
- `begun.py`: Results between GetFlightInfo, which has to tell their schema, and DoGet, which reads them.
- `program.py`: The program that serves Flight SQL: `python -m lakestream_flight.program`.
"""
