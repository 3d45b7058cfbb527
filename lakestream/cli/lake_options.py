"""Options of the commands that work on a lake.

Belongs here: the option that names the lake, with its default, and the one that names catalogs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_LAKE = Path("data", "lake")
LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake",
        envvar="LAKESTREAM_LAKE",
        help="Directory or URL of the lake (default: this directory if it is a lake, else ./data/lake).",
    ),
]
"""The option of every command that works on a lake; see `default_lake`."""
CatalogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog",
        metavar="URL",
        envvar="LAKESTREAM_CATALOGS",
        help="Catalog to register the tables in: hive://HOST/DATABASE, glue://REGION/DATABASE, "
        "unity://HOST/CATALOG/SCHEMA or iceberg://HOST/PATH. May be repeated.",
    ),
]


def default_lake() -> Path:
    """Return the default lake: this directory if it is a lake's root, else ./data/lake."""
    return Path() if Path("streams").is_dir() or Path("segments").is_dir() else DEFAULT_LAKE
