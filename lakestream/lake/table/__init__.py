"""The format of a stream's Delta table.

Belongs here: the transaction log and its only reader, schema, table properties, positions, deletion vectors, and the
rows that a staged segment adds. Nothing here needs Spark, and nothing commits to a table.
"""
