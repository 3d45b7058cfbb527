"""The web console.

Belongs here: the page and its files (`static/`), sessions, and the requests that the page makes. A session is a client
connection of this server in the same process, so authentication, permissions and limits are those of clients. HTTP is
in ops/monitoring/port.py.

In reading order:

- `console.py`: The requests of the console.
- `access.py`: Access to the console over HTTP.
- `files.py`: The page of the console and its files.
- `sessions.py`: The sessions of the console.
- `client.py`: The client of a console session.
- `pages.py`: The monitoring pages of a session.
- `live.py`: Messages of subjects as Server-Sent Events.
- `shown.py`: Messages as the page gets them.
- `sql.py`: SQL of the console, in processes of their own.
- `pipe.py`: A connection of this server without a socket.
"""
