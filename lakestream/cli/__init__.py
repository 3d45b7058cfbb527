"""Commands.

Belongs here: command lines, and the processes that a command starts.
"""
