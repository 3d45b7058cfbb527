"""Any table as messages, and messages as any table: `lakestream import` and `lakestream export`.

Belongs here: reading and writing tables of any origin, and the mapping of columns in both directions.
"""
