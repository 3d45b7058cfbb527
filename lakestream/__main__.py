"""`python -m lakestream`: the command `lakestream`, for environments whose programs are not on PATH."""

from lakestream.cli.main import main

main()
