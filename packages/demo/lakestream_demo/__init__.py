"""`lakestream demo`: 336,776 flights through NATS into Delta, queried with SQL.

Belongs here: the data set with its questions, and the steps in the order in which they are shown.

In reading order:

- `command.py`: `lakestream demo`: a whole round with real data, checked.
- `flights.py`: The demo's data: a year of flights from New York, and three questions with their answers.
"""
