"""The monitoring port (/varz, /connz, /jsz …).

Belongs here: HTTP on that port, and each page; what the pages need of a server is in monitored.py.
"""
