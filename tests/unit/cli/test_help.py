"""Tests of the help of every command, and of the completion of command lines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from lakestream import __version__
from lakestream.cli.app import app
from lakestream.cli.optional import LoadedLater

pytestmark = pytest.mark.unit

PROGRAM = [sys.executable, "-m", "lakestream"]


def commands() -> Iterator[tuple[str, Any]]:
    """Iterate over all commands, those of groups included."""
    pending = [("", typer.main.get_command(app))]
    while pending:
        name, command = pending.pop()
        if isinstance(command, LoadedLater):
            command.load()
        yield name, command
        inner = getattr(command, "commands", {})
        pending += [(f"{name} {each}".strip(), inner[each]) for each in inner]


def test_every_command_and_every_option_has_a_sentence_of_help() -> None:
    found = dict(commands())
    assert {"doctor", "status", "top", "bench", "config check", "config show", "sql", "import", "export"} <= set(found)
    wrong = [name for name, command in found.items() if not (command.help or "").strip().splitlines()[0].endswith(".")]
    for name, command in found.items():
        for option in command.params:
            text = getattr(option, "help", None) or ""
            if not text.rstrip().endswith((".", ")")):
                wrong.append(f"{name} {option.name}: {text}")
    assert wrong == []


def test_help_opens_with_a_verb_or_a_noun() -> None:
    """Riddles open with a clause: "Where the clone shall be; nothing may be there."."""
    clauses = ("What ", "Whether ", "Where ", "How ", "When ", "Who ", "It ", "They ", "Takes the place")
    texts = [
        (name, option.help or "")
        for name, command in commands()
        for option in command.params
        if hasattr(option, "help")
    ]
    texts += [(name, command.help or "") for name, command in commands()]
    assert [each for each in texts if each[1].startswith(clauses) or "process's place" in each[1]] == []


def test_commands_whose_results_scripts_read_have_json() -> None:
    without = {
        name
        for name, command in commands()
        if not hasattr(command, "commands") and not any("--json" in option.opts for option in command.params)
    }
    programs = {
        "serve",
        "up",
        "mcp",
        "iceberg serve",
        "registry serve",
        "registry follow",
        "sharing serve",
        "sharing create",
    }  # the last prints a profile, which is JSON
    messages = {"pub", "sub", "req", "request", "consumer next", "stream view", "kv watch"}
    # Done or not is all that scripts want of these; a value is read with --raw, an object is a file.
    changes = {"stream rm", "consumer rm"}
    changes |= {f"kv {name}" for name in ("add", "put", "create", "update", "get", "purge", "rm", "del", "info")}
    changes |= {f"object {name}" for name in ("add", "put", "get", "rm", "del", "info")}
    assert without == programs | messages | changes


def test_the_page_of_commands_names_every_command() -> None:
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")
    groups = ("", "catalog", "config", "consumer", "iceberg", "kv", "object", "registry", "schema", "sharing", "stream")
    aliases = ("req", "kv del", "object del")  # as of the nats command
    assert [name for name, _ in commands() if f"`{name}`" not in page and name not in groups + aliases] == []


def completed(line: str) -> list[str]:
    """Return what a shell offers for the last word of a command line."""
    words = line.split(" ")
    environ = {"_LAKESTREAM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        PROGRAM, capture_output=True, text=True, check=False, env={**os.environ, **environ}, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_a_shell_completes_commands_options_and_flags_of_nats_server() -> None:
    assert completed("lakestream do") == ["doctor"]
    assert completed("lakestream shar") == ["sharing"]
    assert completed("lakestream sharing re") == ["revoke"]
    assert "--as-of" in completed("lakestream restore --as")
    assert set(completed("lakestream serve --store")) == {"--store_dir"}
    assert {"-js", "-sd", "--cluster_name"} <= set(completed("lakestream up -")) | set(completed("lakestream up --clu"))


def test_the_script_of_completion_is_shown_for_a_shell() -> None:
    environ = {**os.environ, "_LAKESTREAM_COMPLETE": "source_zsh"}
    done = subprocess.run(PROGRAM, capture_output=True, text=True, check=False, env=environ, timeout=60)
    assert "#compdef lakestream" in done.stdout


@pytest.mark.parametrize("arguments", [["--version"], ["-v"], ["serve", "--version"]])
def test_the_version_is_one_line(arguments: list[str]) -> None:
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"lakestream: v{__version__}\n")


def test_a_wrong_option_is_exit_code_2() -> None:
    done = subprocess.run([*PROGRAM, "status", "--nonsense"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--nonsense" in done.stderr
    assert "lakestream status" in done.stderr  # the command's name, however it was started


def test_the_help_names_what_has_no_command_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for named in ("http://localhost:8222/console", "/metrics", "lakestream.client"):
        assert named in shown
