"""Observation of a running server.

Belongs here: monitoring pages, the web console, the system account, and files by which tools find the server.

In reading order:

- `monitoring/`: The monitoring port (/varz, /connz, /jsz …).
- `metrics/`: Metrics of a server: `/metrics` of the monitoring port.
- `system/`: The system account (`$SYS.>`).
- `sql/`: SQL for clients, in processes of their own: no query can hold up the server.
- `ports_file.py`: Files by which tools find a running server.
"""
