# Types of the compiled module: those of its twin.
from lakestream.native.plain import ColumnReader as ColumnReader
from lakestream.native.plain import SubjectMatcher as SubjectMatcher
from lakestream.native.plain import SubjectSeeker as SubjectSeeker
from lakestream.native.plain import check_records as check_records
from lakestream.native.plain import choose_run as choose_run
from lakestream.native.plain import copy_records as copy_records
from lakestream.native.plain import crc32 as crc32
from lakestream.native.plain import decode_record as decode_record
from lakestream.native.plain import decode_spans as decode_spans
from lakestream.native.plain import delivery_sizes as delivery_sizes
from lakestream.native.plain import encode_record as encode_record
from lakestream.native.plain import encode_rows as encode_rows
from lakestream.native.plain import encode_run as encode_run
from lakestream.native.plain import frame_acks as frame_acks
from lakestream.native.plain import frame_deliveries as frame_deliveries
from lakestream.native.plain import frame_direct as frame_direct
from lakestream.native.plain import frame_run as frame_run
from lakestream.native.plain import header_values as header_values
from lakestream.native.plain import note_ids as note_ids
from lakestream.native.plain import page_header as page_header
from lakestream.native.plain import parse_run as parse_run
from lakestream.native.plain import record_subjects as record_subjects
from lakestream.native.plain import records_match as records_match
from lakestream.native.plain import renew as renew
from lakestream.native.plain import seek_ids as seek_ids
from lakestream.native.plain import split_names as split_names
from lakestream.native.plain import split_records as split_records
from lakestream.native.plain import sync_paths as sync_paths
from lakestream.native.plain import text_cells as text_cells

SOURCES: int
