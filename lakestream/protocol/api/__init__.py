"""Requests and replies of the JetStream API as JSON.

Belongs here: decoding of requests, encoding of replies and advisories, and error codes. Knows of no stream.

In reading order:

- `errors.py`: JetStream's error codes, and errors for clients.
- `jsonio.py`: JSON as Go's encoder writes it and as nats-server reads it.
- `json_syntax.py`: Syntax errors of JSON.
- `request.py`: Requests to the JetStream API and their responses.
- `advisory.py`: Advisories and metrics.
"""
