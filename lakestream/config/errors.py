"""Why a server does not start.

Belongs here: the error type that flags, configuration and start-up raise for what the operator has to put right.
Errors of a running server (protocol, JetStream API) live with their parts.
"""

from __future__ import annotations

import os


class StartError(Exception):
    """The server cannot start as asked. The text is one line: what is wrong, where, and what to do."""


def reason_of(error: OSError) -> str:
    """Why a system call failed, without the words that event loops and resolvers put around it."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error.strerror or error)  # a resolver's numbers are its own
