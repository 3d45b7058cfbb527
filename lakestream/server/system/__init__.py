"""The server as its own clients hear of it: `$SYS.>`.

Belongs here: events without being asked, and answers to requests for what the server knows of itself.
"""
