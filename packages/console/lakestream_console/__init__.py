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
- `ring.py`: A ring of figures: the last hour in fine steps, a day in coarse ones.
- `history.py`: The figures of the last day, for the plots of the page.
- `stream_figures.py`: The figures of single streams over time: messages stored, and messages not in the table yet.
- `live.py`: Messages of subjects as Server-Sent Events.
- `restores.py`: Restoring a stream as of a moment into a new one.
- `past.py`: The program that reads a stream as of a moment, for a restore: `python -m lakestream_console.past`.
- `shown.py`: Messages as the page gets them.
- `sql.py`: SQL of the console, in processes of their own.
- `pipe.py`: A connection of this server without a socket.
"""
