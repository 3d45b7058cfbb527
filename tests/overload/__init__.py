"""Overload: floods against a real server, with a quiet client beside them.

    python -m tests.overload [SCENARIO …] [--quick] [--save] [--kind nats]

What is flooded: the listeners of one server, a node of a cluster at its port for the others, and the listeners for SQL.

Belongs here: the floods (floods.py), the quiet client (quiet.py), the list of scenarios with their bounds of memory
(scenarios.py), and the round that measures one of them (rounds.py). Server and clients are pinned to different cores.
"""
