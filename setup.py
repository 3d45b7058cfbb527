"""Build the compiled module lakestream.native._fast, if that is possible and wanted. All else is in pyproject.toml.

Without a C compiler or Cython the installation succeeds, and lakestream/native/plain.py serves instead.
LAKESTREAM_PURE=1 leaves the module out, which makes a wheel for every platform.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup

extensions: list[Extension] = []
if os.environ.get("LAKESTREAM_PURE") != "1":
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("Cython is not installed: lakestream is built without its compiled module")
    else:
        module = Extension(
            "lakestream.native._fast",
            ["lakestream/native/fast.pyx"],
            include_dirs=["lakestream/native"],
            depends=["lakestream/native/crc32.h"],
            extra_compile_args=[] if os.name == "nt" else ["-O3"],
            optional=True,
        )
        extensions = cythonize([module], build_dir="build", language_level=3)

setup(ext_modules=extensions)
