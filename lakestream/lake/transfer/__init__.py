"""Import and export: any table as messages, and messages as any table.

Belongs here: reading and writing tables of any origin, and the mapping of columns in both directions.
"""
