"""Campaign of damage to every replica: real clusters of three whose stopped nodes are all damaged at once.

Belongs here: the stores on which cases begin (prepared.py), the kinds of damage (harms.py), the verdict once all nodes
have started again (judge.py), and the command.
"""
