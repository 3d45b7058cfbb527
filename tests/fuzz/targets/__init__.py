"""The targets by name.

Belongs here: which module has which target. The modules are imported late, so that a campaign can instrument them.
"""

from __future__ import annotations

import importlib

from tests.fuzz.target import Target

MODULES = {
    "protocol": "protocol",
    "websocket": "protocol",
    "leaf": "protocol",
    "mqtt": "mqtt",
    "postgres": "postgres",
    "proxy": "connections",
    "hello": "connections",
    "routes": "nodes",
    "raft": "nodes",
    "segments": "files",
    "checkpoints": "files",
    "staged": "files",
    "archives": "files",
    "conf": "texts",
    "jwt": "texts",
    "sql": "texts",
    "api": "api",
    "json_schemas": "schemas",
    "avro_schemas": "schemas",
    "proto_schemas": "schemas",
    "json_payloads": "schemas",
    "avro_payloads": "schemas",
    "proto_payloads": "schemas",
}
"""The module of each target."""


def load(name: str) -> Target:
    """Import and return a target."""
    module = importlib.import_module(f"tests.fuzz.targets.{MODULES[name]}")
    found: Target = next(target for target in module.TARGETS if target.name == name)
    return found
