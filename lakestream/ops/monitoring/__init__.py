"""The monitoring port (/varz, /connz, /jsz …).

Belongs here: HTTP on that port, and each page as a function of a query and the server's state (monitored.py).
"""
