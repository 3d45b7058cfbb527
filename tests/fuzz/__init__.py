"""Coverage-guided fuzzing: arbitrary bytes for every reader of bytes that come from elsewhere.

    python -m tests.fuzz [TARGET…] --runs N --seed S

Belongs here: the targets (`targets/`, one function of bytes each), the promises that every input is checked for
(`target.py`), the campaign (`campaign.py`, `worker.py`: atheris, a process a target), and the inputs that `make test`
replays (`corpora/<target>/`).
"""
