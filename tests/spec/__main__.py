"""`python -m tests.spec`: check the models with TLC, and that it refutes each of their mutations.

python -m tests.spec --model Release

Exit code 1 if a model has a violation, or a mutation has none; 2 without TLC.
"""

from __future__ import annotations

import argparse
import sys

from tests.spec.models import MODELS, Model, NoChecker, check, jar


def main() -> int:
    """Check the models; return 1 if an answer is not the expected one."""
    parser = argparse.ArgumentParser(prog="python -m tests.spec", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=[model.name for model in MODELS], help="only this one")
    parser.add_argument("--no-mutations", action="store_true", help="only the models themselves")
    parser.add_argument("--no-models", action="store_true", help="only the mutations")
    arguments = parser.parse_args()
    try:
        jar()
    except NoChecker as error:
        print(error)
        return 2
    wrong = 0
    for model in MODELS:
        if arguments.model in (None, model.name):
            wrong += 0 if arguments.no_models else _check(model)
            wrong += 0 if arguments.no_mutations else _mutate(model)
    return int(wrong > 0)


def _check(model: Model) -> int:
    answer = check(model)
    result = f"{answer.broken} is violated" if answer.broken else "no violation"
    print(f"{model.name}: {result}; {answer.states:,} states, depth {answer.depth}, {answer.seconds:.0f} s", flush=True)
    return int(bool(answer.broken))


def _mutate(model: Model) -> int:
    wrong = 0
    for mutation in model.mutations:
        answer = check(model, mutation)
        found = f"{answer.broken} is violated in {answer.trace} steps" if answer.broken else "NOT FOUND"
        print(f"{model.name} without {', '.join(mutation.without)}: {found}, {answer.seconds:.0f} s", flush=True)
        wrong += answer.broken != mutation.breaks
    return wrong


if __name__ == "__main__":
    sys.exit(main())
