"""Build the compiled module lakestream.native._fast, if that is possible and wanted. All else is in pyproject.toml.

Without a C compiler or Cython the installation succeeds, and lakestream/native/plain.py serves instead.
LAKESTREAM_PURE=1 leaves the module out, which makes a wheel for every platform.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildIfPossible(build_ext):
    """Build the module; without a working C compiler, print the reason and go on."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:  # a missing compiler, missing headers of Python, an option it does not know, …
            print(f"lakestream is installed without its compiled module: {error}")


extensions: list[Extension] = []
if os.environ.get("LAKESTREAM_PURE") != "1":
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("lakestream is installed without its compiled module: Cython is not installed")
    else:
        # lakestream.native compares the sum with that of the sources beside it.
        sources = [f"lakestream/native/{name}" for name in ("fast.pyx", "columns.h", "crc32.h")]
        crc = zlib.crc32(b"".join(Path(path).read_bytes() for path in sources))
        module = Extension(
            "lakestream.native._fast",
            sources[:1],
            include_dirs=["lakestream/native"],
            depends=sources[1:],
            define_macros=[("LAKESTREAM_SOURCES", f"{crc}u")],
            extra_compile_args=[] if os.name == "nt" else ["-O3"],
        )
        extensions = cythonize([module], build_dir="build")
        for extension in extensions:
            extension.optional = True  # cythonize does not pass it on

setup(ext_modules=extensions, cmdclass={"build_ext": BuildIfPossible})
