"""Verification and repair of a store that no server uses.

`recovered.py` recovers streams as a start would, without changing a file; `streams.py` verifies one stream, `meta.py`
the assignments of a cluster, `stores.py` all of a store.
"""
