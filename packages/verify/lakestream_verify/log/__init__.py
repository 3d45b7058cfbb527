"""Verification of the files of one log.

Belongs here: checks that read a log's files and report findings. Nothing is changed: changes that a start would make go
to an overlay.

In reading order:

- `overlay.py`: Files whose changes go to another directory.
- `findings.py`: Findings of a verification.
- `frames.py`: Verification of segments.
- `parts.py`: Verification of the files beside the segments of a log, and of a whole log directory.
"""
