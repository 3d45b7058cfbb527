"""The clouds that lakestream knows.

Belongs here: finding the cloud of a URL. Who adds one writes its description, and names it here.
"""

from __future__ import annotations

from lakestream.lake.storage.clouds.azure import Azure
from lakestream.lake.storage.clouds.cloud import Cloud
from lakestream.lake.storage.clouds.gcs import Gcs
from lakestream.lake.storage.clouds.s3 import S3

CLOUDS: tuple[Cloud, ...] = (S3(), Gcs(), Azure())


def cloud_of(url: str) -> Cloud | None:
    """Return the cloud of a canonical URL; None for a path of this machine."""
    scheme, separator, _ = url.partition("://")
    return next((cloud for cloud in CLOUDS if separator and cloud.scheme == scheme), None)
