"""The web console.

Belongs here: the page and its files (`static/`), sessions, and the requests that the page makes. A session is a client
connection of this server in the same process, so authentication, permissions and limits are those of clients. HTTP is
in ops/monitoring/port.py.
"""
