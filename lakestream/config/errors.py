"""Errors of a server's start.

Belongs here: the error that flags, configuration and start-up raise for the operator. Errors of a running server
(protocol, JetStream API) are in their parts.
"""

from __future__ import annotations

import os


class StartError(Exception):
    """Raised when the server cannot start. The text is one line: what is wrong, where, and what to do.

    Attributes:
        of_settings: the text has a line for each wrong setting of a file.
    """

    of_settings = False


def reason_in_words(error: OSError) -> str:
    """Return why a system call failed as nats-server writes it, e.g. `no such file or directory`."""
    reason = reason_of(error)
    return reason[:1].lower() + reason[1:]


class SettingsError(StartError):
    """Raised for settings whose fault only the start finds; shown as other wrong settings are, not in the log."""


def reason_of(error: OSError) -> str:
    """Return why a system call failed, without the words that event loops and resolvers add."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error.strerror or error)  # a resolver's error numbers are not errno
