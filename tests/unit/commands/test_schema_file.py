"""Tests of `lakestream schema test`, by its command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lakestream_commands.schema import schema

pytestmark = pytest.mark.unit

V1 = {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}, "required": ["id"]}
V2 = {**V1, "required": ["id", "n"]}


def run_in(folder: Path, *arguments: str) -> Result:
    """Run the command in a folder with two versions and payloads."""
    files = {"v1.json": json.dumps(V1), "v2.json": json.dumps(V2), "bad.json": '{"type": "nothing"}'}
    files |= {"good.jsonl": '{"id": "a"}\n\n{"id": "b", "n": 1}\n', "wrong.jsonl": '{"n": 1}\n'}
    for name, text in files.items():
        (folder / name).write_text(text)
    return CliRunner().invoke(schema, ["test", *(str(folder / a) if "." in a else a for a in arguments)])


def test_a_good_schema_shows_its_columns(tmp_path: Path) -> None:
    done = run_in(tmp_path, "v1.json", "--fits", "good.jsonl", "--misfits", "wrong.jsonl", "--before", "v1.json")
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.output.splitlines()] == ["ok", "ok", "ok", "ok", "ok", "id", "n"]
    assert "id STRING" in done.output


@pytest.mark.parametrize(
    ("arguments", "check"),
    [
        (("bad.json",), "schema"),
        (("v1.json", "--fits", "wrong.jsonl"), "fits"),
        (("v1.json", "--misfits", "good.jsonl"), "does not fit"),
        (("v2.json", "--before", "v1.json"), "compatible"),
    ],
)
def test_a_failed_check_ends_with_code_1(tmp_path: Path, arguments: tuple[str, ...], check: str) -> None:
    done = run_in(tmp_path, *arguments, "--json")
    assert done.exit_code == 1
    assert check in {each["check"] for each in json.loads(done.output)["checks"] if each["problem"]}


def test_a_missing_file_and_an_unknown_mode_are_told(tmp_path: Path) -> None:
    assert run_in(tmp_path, "none.json").exit_code == 1
    assert run_in(tmp_path, "v1.json", "--fits", "none.jsonl").exit_code == 1
    assert run_in(tmp_path, "v1.json", "--compatibility", "some").exit_code == 1
