"""Commands.

Belongs here: command lines, and the processes that a command starts.

In reading order:

- `main.py`: The `lakestream` command.
- `app.py`: The Typer application with every command of `lakestream`.
- `optional.py`: Commands that are loaded when they are wanted, most of them from optional packages (`packages/`).
- `flags.py`: The command line of a server, in Go's style.
- `serve.py`: `lakestream serve`: one server process.
- `supervisor.py`: Supervision of one child process.
- `up.py`: `lakestream up`: the server with its compactor.
- `config_command.py`: `lakestream config`: checking a configuration file, and showing the settings in force.
- `terminal.py`: Output of commands.
- `results.py`: Output of query results.
- `server_options.py`: Options by which commands name a server and log in to it.
- `link.py`: A connection to a running server, for commands that move messages.
- `lake_options.py`: Options of the commands that work on a lake.
- `rotate_command.py`: `lakestream rotate-key`: changing the master key of an encrypted store.
"""
