"""Changing Delta tables, with Spark.

Belongs here: compaction of staged segments, maintenance of tables, and clones. All changes of a table are made here.
"""
