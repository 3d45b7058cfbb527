"""Agreement on one order of entries.

Belongs here: proposing entries, making them durable on as many members as their group needs, and handing them out as
committed, in index order. Entries are opaque here.
"""
