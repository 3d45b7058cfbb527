"""Flight SQL: SQL over NATS for clients of ADBC, JDBC and Arrow.

Belongs here: the few messages of Protocol Buffers (`messages.py`), logins (`logins.py`), and the program
(`program.py`), which a server with `sql { flight: … }` starts, and which is one of its clients.
"""
