"""The `lakestream` command.

Belongs here: dispatch of the arguments. `serve` and `up` go straight to their modules, so that a server loads nothing
that it does not need; all other commands go through the Typer application.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from lakestream.lazy_modules import leave_out
from lakestream.server.early_signals import EARLY

_OF_THE_APPLICATION = ("-h", "--help", "--install-completion", "--show-completion")
"""Options without a command that are not flags of `serve`."""


def main() -> None:
    """Entry point of the console script; ends the process with the command's exit code.

    That the reader of the output closes it, as `head` does, is no error of a command.
    """
    try:
        try:
            _dispatch(sys.argv[1:])
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        # Python must not flush into the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _dispatch(arguments: Sequence[str]) -> None:
    """Run a command.

    Flags without a command (`lakestream -p 4222 -js`) mean `serve`: tools that start a server by a single executable
    pass nats-server's flags straight to it. A shell that completes a command line runs the program without arguments.
    """
    if arguments[:1] == ["up"]:
        _begin()
        from lakestream.cli.up import up

        sys.exit(up(arguments[1:]))
    if arguments[:1] == ["serve"]:
        arguments = arguments[1:]
    elif not arguments or not arguments[0].startswith("-") or arguments[0] in _OF_THE_APPLICATION:
        _run(arguments)
        return
    _begin()
    from lakestream.cli.serve import serve

    sys.exit(serve(arguments))


def _begin() -> None:
    """Handle signals, and do not look for garbage until the server is ready: that takes a tenth of the start, and finds
    modules, which stay."""
    EARLY.catch()
    gc.disable()


def _run(arguments: Sequence[str]) -> None:
    """Run a command of the Typer application; one whose packages are not installed ends with one line and code 1."""
    if arguments[:1] == ["sql"] and not any("spark" in each for each in arguments):
        leave_out("pandas")  # pyarrow looks for it first of all, which takes longer than a query
    from lakestream.cli.app import app

    output = sys.stdout
    try:
        app(prog_name="lakestream")
    except SystemExit:
        if sys.stdout is not output:  # Typer has seen a closed pipe, which it takes for an error
            raise BrokenPipeError from None
        raise
    except ImportError as error:
        from lakestream import extras

        missing = extras.explain(error, f"lakestream {arguments[0]}")
        if missing is None:
            raise
        print(f"lakestream: {missing}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
