"""Campaign of upgrades: server and compactor of a lake go to the present release and back, in every order, under load.

Order of reading: programs.py runs the two, clients.py publishes and reads meanwhile, walk.py has the steps and the
audit, __main__.py is the command.
"""
