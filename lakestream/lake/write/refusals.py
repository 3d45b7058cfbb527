"""Errors of Delta that another program has caused, with what to do.

Belongs here: the remedy for each error with which Delta refuses to read or write a table, by the error's class. Errors
of lakestream have their remedy in their own texts (lake/errors.py).
"""

from __future__ import annotations

_FEATURE = "drop it with the program that has added it to {table}, or upgrade lakestream"
_COMMITS = "bring the missing files of {table}/_delta_log back from a copy of the lake"
REMEDIES = {
    "[DELTA_UNSUPPORTED_FEATURES_FOR_WRITE": _FEATURE,
    "[DELTA_UNSUPPORTED_FEATURES_FOR_READ": _FEATURE,
    "[DELTA_UNSUPPORTED_FEATURES_IN_CONFIG": _FEATURE,
    "Unsupported: Feature": _FEATURE,
    "[DELTA_INVALID_PROTOCOL_VERSION": "upgrade lakestream, whose Delta is older than the program that wrote {table}",
    "[DELTA_CANNOT_MODIFY_APPEND_ONLY": (
        "undo it in Spark SQL with ALTER TABLE delta.`{table}` UNSET TBLPROPERTIES ('delta.appendOnly')"
    ),
    "[DELTA_VERSIONS_NOT_CONTIGUOUS": _COMMITS,
    "[DELTA_MISSING_FILES_UNEXPECTED_VERSION": _COMMITS,
    "[DELTA_LOG_FILE_NOT_FOUND": _COMMITS,
    "[DELTA_TRUNCATED_TRANSACTION_LOG": _COMMITS,
    "[DELTA_STATE_RECOVER_ERROR": _COMMITS,
}
"""Remedies by a part of the error's text: its class, or words of deltalake. `{table}` is the table's path."""


def with_remedy(reason: str, table: str) -> str:
    """Return the text of an error about a table, with what to do if that is known."""
    remedy = next((each for name, each in REMEDIES.items() if name in reason), "")
    return f"{reason.rstrip('.')}; {remedy.format(table=table)}" if remedy else reason
