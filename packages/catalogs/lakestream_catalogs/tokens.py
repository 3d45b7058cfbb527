"""Tokens of catalogs over HTTP: in the environment, or in a file that is read for each connection."""

from __future__ import annotations

from collections.abc import Mapping

from lakestream.lake.catalogs.address import CatalogAddress
from lakestream_catalogs.catalog import CatalogAway


def token_of(address: CatalogAddress, environ: Mapping[str, str], variable: str, file_variable: str) -> str:
    """Return the token for a catalog; "" if there is none.

    Args:
        address: may name a file.
        environ: the environment.
        variable, file_variable: names of the variables with the token, and with the name of a file.

    Raises:
        CatalogAway: the file cannot be read.
    """
    file = address.token_file or environ.get(file_variable, "")
    if not file:
        return environ.get(variable, "")
    try:
        with open(file, encoding="ascii") as stream:
            return stream.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise CatalogAway(str(address), f"the token in {file} cannot be read: {reason}", "mend it") from None
