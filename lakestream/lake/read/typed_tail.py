"""Typed columns of a live view: those of the table, and those of messages that are not in it yet.

Belongs here: decoding the uncompacted part of a view as the compactor will, and the columns that a query of the view
has. A version whose columns the table lacks adds them to the view; rows of the table are NULL there.
"""

from __future__ import annotations

import pyarrow as pa

from lakestream.lake.files.lake import open_storage
from lakestream.lake.read.live_rows import LiveView
from lakestream.lake.table import typed_columns
from lakestream.lake.table.schema import FORMAT_COLUMN, SCHEMA_COLUMN, column_names, is_own, table_schema
from lakestream.lake.table.schema_catalog import SchemaCatalog
from lakestream.lake.table.typed_columns import EMPTY, NoColumns
from lakestream.lake.table.typed_rows import TypedRows


def table_columns(view: LiveView) -> list[str]:
    """Return the columns of the table that a query of the view has, in addition to the view's own."""
    if not view.typed:
        return []
    names = column_names(view.typed)
    return [name for name in names if name in (SCHEMA_COLUMN, FORMAT_COLUMN) or not is_own(name)]


def tail(view: LiveView) -> pa.Table:
    """Return the uncompacted messages of a view with the view's columns and their typed ones.

    Raises:
        SegmentGone: the view is too old.
    """
    batches = [batch for batch in view.tail_batches() if batch.num_rows]
    if not view.schemas or not batches:
        return pa.Table.from_batches(batches, table_schema(view.columns))
    catalog = SchemaCatalog(open_storage(view.lake), view.account)
    table = typed_columns.of_table(view.typed) if view.typed else EMPTY
    while True:
        typed = TypedRows(catalog, view.schemas, table, drop_data=False)
        found = [pa.Table.from_batches([typed.add(batch).rows]) for batch in batches]
        wider = table
        for name in sorted(typed.needed):
            try:
                wider, _ = typed_columns.placed(wider, typed_columns.of_table(typed.needed[name]))
            except NoColumns:  # misfits
                continue
        if wider == table:
            return pa.concat_tables(found, promote_options="default")
        table = wider
