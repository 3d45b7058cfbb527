"""Every key of nats-server is served, refused by name, or leaves a warning; none is ignored in silence."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from lakestream.config import cluster, settings
from lakestream.config.conf import ConfError
from lakestream.config.errors import StartError
from lakestream.config.operators import OPERATOR_KEYS
from lakestream.config.options import (
    ClusterOptions,
    JetStreamOptions,
    LakeOptions,
    Options,
)
from lakestream.config.settings import read_settings
from lakestream.config.values import Rule
from tests.conf_keys import LEVELS, PAIRS

pytestmark = pytest.mark.unit

VALUES = ("5", "x", "true", "'1m'", "[x]", "{ a: b }", "[{ a: b }]")


def refused(path: str) -> str:
    try:
        read_settings(path)
    except StartError as error:
        return str(error)
    return ""


BLOCKS = ("gateway", "gateways")
"""Levels in blocks that are refused as a whole."""
PAGE = (Path(__file__).parents[3] / "docs" / "not-served.md").read_text()


@pytest.mark.parametrize(("level", "key"), PAIRS)
def test_a_key_of_nats_server_is_known_and_documented_if_it_is_not_served(tmp_path: Path, level: str, key: str) -> None:
    path = tmp_path / "nats.conf"
    for value in VALUES:
        path.write_text(LEVELS[level].text % f"{key}: {value}")
        wrong = refused(str(path))
        assert f'nknown field "{key}"' not in wrong
        _, not_served, instead = wrong.partition("is not supported")
        assert not not_served or len(instead) > 10
        if level not in BLOCKS and f'"{key}" is not supported' in wrong:
            assert re.search(rf"`[^`]*\b{key}\b[^`]*`", PAGE), f"{key} is missing in docs/not-served.md"


def test_a_key_that_nobody_knows_is_refused_at_every_level(tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    for level in LEVELS.values():
        path.write_text(level.text % "shoe_size: 44")
        with pytest.raises(ConfError):
            read_settings(str(path))


@pytest.mark.parametrize("key", [*settings.TOP_HARMLESS, *cluster.CLUSTER_HARMLESS])
def test_a_key_without_effect_leaves_a_warning(tmp_path: Path, key: str) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(f"{key}: 5" if key in settings.TOP_HARMLESS else f"cluster {{ {key}: 5 }}")
    made = read_settings(str(path))
    (warning,) = made["cluster"].warnings if "cluster" in made else made["warnings"]
    assert warning.endswith(f'"{key}" has no effect here')


def test_what_to_use_instead_of_a_block_is_documented(tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text("gateway { name: A }")
    with pytest.raises(StartError) as caught:
        read_settings(str(path))
    page, _, anchor = str(caught.value).rpartition("(docs/")[2].rstrip(")").partition("#")
    text = (Path(__file__).parents[3] / "docs" / page).read_text()
    assert f"## {anchor.replace('-', ' ')}" in text.lower()


CHECKED = {
    "ocsp": "false alone is accepted",
    "ocsp_cache": "false alone is accepted",
    "store_dir": "moved into the jetstream block",
    "cipher": "always refused",
    "enabled": "JetStream is on or off",
    **dict.fromkeys((option for option, _ in OPERATOR_KEYS.values()), "`settle_operators` makes one option of them"),
}
"""Rules that set no option: the converter checks the value, or the caller uses it."""


@pytest.mark.parametrize(
    ("rules", "options"),
    [
        (settings.TOP, Options),
        (settings.JETSTREAM, JetStreamOptions),
        (settings.LAKE, LakeOptions),
        (cluster.CLUSTER, ClusterOptions),
    ],
)
def test_a_rule_sets_an_option_that_exists(rules: dict[str, Rule], options: type[msgspec.Struct]) -> None:
    unknown = {option for option, _ in rules.values()} - {*options.__struct_fields__, "*"}
    assert unknown <= CHECKED.keys()
