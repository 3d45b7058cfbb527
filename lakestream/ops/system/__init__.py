"""The system account (`$SYS.>`).

Belongs here: events that the server publishes, and replies to requests about the server.
"""
