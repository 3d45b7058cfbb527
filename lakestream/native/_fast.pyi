# Types of the compiled module: those of its twin.
from lakestream.native.plain import decode_record as decode_record
from lakestream.native.plain import decode_spans as decode_spans
from lakestream.native.plain import encode_run as encode_run
from lakestream.native.plain import frame_acks as frame_acks
from lakestream.native.plain import frame_run as frame_run
from lakestream.native.plain import parse_run as parse_run
from lakestream.native.plain import split_records as split_records
