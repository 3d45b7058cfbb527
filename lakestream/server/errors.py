"""Why a server does not start.

Belongs here: the one error type that flags, configuration and start-up raise for what the operator has to put right.
Errors of a running server (protocol, JetStream API) live with their parts.
"""

from __future__ import annotations


class StartError(Exception):
    """The server cannot start as asked. The text is one line: what is wrong, where, and what to do."""
