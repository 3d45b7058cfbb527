"""Verification of the files of one log. Nothing is changed: what a start would change goes to an overlay.

`findings.py` has the record of a finding, `frames.py` segments, `parts.py` the files beside them, `overlay.py` files
whose changes go elsewhere.
"""
