"""Reading streams of a lake, without Spark except for its data source.

Belongs here: old messages for the server (history/), a stream as it is now (live view), and tables as Arrow data.
"""
