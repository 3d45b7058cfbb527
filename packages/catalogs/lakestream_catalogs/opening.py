"""Connections to catalogs.

Belongs here: the choice of the implementation for an address. The clients of each kind are loaded when it is used.
"""

from __future__ import annotations

from lakestream import extras
from lakestream.lake.catalogs.address import CatalogAddress
from lakestream_catalogs.catalog import Catalog


def open_catalog(address: CatalogAddress) -> Catalog:
    """Connect to a catalog.

    Raises:
        CatalogAway: it does not answer.
        ExtraMissing: its client is not installed.
    """
    if address.kind == "unity":
        from lakestream_catalogs.unity import UnityCatalog

        return UnityCatalog(address)
    if address.kind == "iceberg":
        from lakestream_catalogs.rest import IcebergRestCatalog

        return IcebergRestCatalog(address)
    extras.require("catalogs", f"the catalog {address}")
    if address.kind == "glue":
        from lakestream_catalogs.glue import GlueCatalog

        return GlueCatalog(address)
    from lakestream_catalogs.hive import HiveCatalog

    return HiveCatalog(address)
