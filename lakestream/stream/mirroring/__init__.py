"""Mirrors and sources: streams that hold messages of other streams.

Belongs here: sessions with origins, the positions in them, and mirrors that begin as clones of a table. Read
mirroring.py first.

In reading order:

- `mirroring.py`: The mirror, or the sources, of one stream, as one part of it.
- `origin.py`: Origins: the streams that mirrors and sources read from, as their configuration names them.
- `origin_rules.py`: Rules of mirrors and sources in stream configurations.
- `session.py`: Sessions: reading an origin in order, for a mirror or a source.
- `mirror.py`: Mirrors: the messages of another stream with their sequences and times.
- `sources.py`: Sources: messages of other streams among a stream's own.
- `runs.py`: Runs: messages of an origin that came together, as columns.
- `clone.py`: A mirror that begins as a clone of its origin's table.
"""
