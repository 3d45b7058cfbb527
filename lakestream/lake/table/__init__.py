"""A stream's Delta table: its format, its states and its rows.

Belongs here: the transaction log and its only reader, states that follow it, rows of a version, the check of files,
schema, table properties, deletion vectors, and the rows that a staged segment adds. Nothing here needs Spark, and
nothing commits to a table.
"""
