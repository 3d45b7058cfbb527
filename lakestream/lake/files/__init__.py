"""Files of a lake: paths, storages, locks and the staging area.

Belongs here: everything below the Delta format. A path is complete and selects its storage (a directory or an object
store). Nothing here reads a Delta table.
"""
