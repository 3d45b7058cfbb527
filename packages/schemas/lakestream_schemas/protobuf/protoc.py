"""Descriptor sets from `.proto` texts.

Belongs here: the one call of the compiler of grpcio-tools, in a process of its own with limits. A schema is compiled
when it is registered; those who decode need the descriptor set only.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from pathlib import Path

from lakestream.schemas.errors import BadSchema

TIMEOUT_S = 20
"""Maximum time of a compilation."""
MAX_OUTPUT = 2 << 20
"""Maximum size of a descriptor set, in bytes."""
_CALL = """
import sys
from importlib.resources import files
from grpc_tools import protoc
sys.exit(protoc.main(["protoc", "-I.", "-I" + str(files("grpc_tools") / "_proto"), "--include_imports", *sys.argv[1:],
                      "--descriptor_set_out=out.pb", "schema.proto"]))
"""


def compile_proto(text: str, imports: bytes = b"") -> str:
    """Return the descriptor set of a `.proto` text, in base64. It may import google/protobuf/*.proto.

    Args:
        text: the file.
        imports: descriptor set with other files that it may import.

    Raises:
        BadSchema: it does not compile, or grpcio-tools is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="lakestream-proto-") as folder:
        Path(folder, "schema.proto").write_text(text, encoding="utf-8", errors="surrogatepass")
        if imports:
            Path(folder, "imports.pb").write_bytes(imports)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _CALL, *(["--descriptor_set_in=imports.pb"] if imports else [])],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BadSchema(f"its compilation took more than {TIMEOUT_S} s") from None
        if "No module named 'grpc_tools'" in done.stderr:
            raise BadSchema("a .proto text needs grpcio-tools", remedy="install it, or register a descriptor set")
        if done.returncode:
            raise BadSchema(done.stderr.strip()[:500] or f"protoc ended with {done.returncode}")
        found = Path(folder, "out.pb").read_bytes()
    if len(found) > MAX_OUTPUT:
        raise BadSchema(f"its descriptor set has more than {MAX_OUTPUT} bytes")
    return base64.b64encode(found).decode()
