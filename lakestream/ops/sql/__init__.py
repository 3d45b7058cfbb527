"""SQL for clients, in processes of their own: the processes, and the service over NATS.

lake/sql answers the queries, in those processes only: no query can hold up the server.
"""
