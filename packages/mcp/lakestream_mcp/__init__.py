"""`lakestream mcp`: tools for AI assistants, over the Model Context Protocol.

Belongs here: the command, a connection as one NATS user, and the tools, which return JSON of bounded size. What the
user may not do, the tools cannot do; what changes something exists with `--allow-writes` only.

In reading order:

- `link.py`: A connection as one user: requests, errors, and names that fit into a subject.
- `shown.py`: Messages and results as JSON of bounded size.
- `tools.py`: The tools that read.
- `writes.py`: The tools that publish and put, with `--allow-writes` only.
- `assembly.py`: The server of the Model Context Protocol, with the tools.
- `command.py`: `lakestream mcp`: the command line, stdio and HTTP.
"""
