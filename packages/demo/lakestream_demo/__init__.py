"""`lakestream demo`: 336,776 flights through NATS into Delta, queried with SQL.

Belongs here: the data set with its questions (`flights.py`), and the steps in the order in which they are shown
(`command.py`).
"""
