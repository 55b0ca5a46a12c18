"""`console/openapi.json`: the part of the platform's OpenAPI document that the console is written against.

Its types are made from it, so that an operation that changes breaks the console's build and not its users' pages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moorage.accounts import records  # noqa: F401 - models of bodies are known once their routes are imported
from moorage.http.answers import PLATFORM_ERRORS
from moorage.http.application import make_application
from moorage.http.request_limits import RequestLimits
from moorage.wiring.platform import mount_all
from tests.serving import ROOT

SOURCE = ROOT / "console" / "src"
GOLDEN = ROOT / "console" / "openapi.json"
_PATH = re.compile(r'\.(GET|POST|PUT|PATCH|DELETE)\(\s*"(/[^"]+)"')
_REF = re.compile(r'"#/components/schemas/([^"]+)"')


def used() -> set[tuple[str, str]]:
    """Return method and path of the operations that the console's source names."""
    texts = (file.read_text() for file in SOURCE.rglob("*.ts*") if file.name != "schema.d.ts")
    return {(method.lower(), path) for text in texts for method, path in _PATH.findall(text)}


def served() -> dict[str, Any]:
    app = make_application(title="moorage", limits=RequestLimits(2**20), cors_origins=[], errors=PLATFORM_ERRORS)
    mount_all(app)
    return app.openapi()


def part_of(document: dict[str, Any], wanted: set[tuple[str, str]]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for method, path in sorted(wanted):
        operation = document["paths"][path][method]
        paths.setdefault(path, {})[method] = _without_description(operation)
    schemas = dict(_reached(paths, document["components"]["schemas"]))
    info = {"title": "moorage", "version": "0"}  # the version of the package is no change of its API
    return {
        "openapi": document["openapi"],
        "info": info,
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items()))},
    }


def _reached(start: Any, schemas: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    waiting = _REF.findall(json.dumps(start))
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            yield name, _without_description(schemas[name])
            waiting += _REF.findall(json.dumps(schemas[name]))


def _without_description(part: dict[str, Any]) -> dict[str, Any]:
    """Leave out the description: a better wording is no change of the API."""
    return {name: value for name, value in part.items() if name != "description"}


def test_the_console_is_written_against_what_is_served() -> None:
    text = json.dumps(part_of(served(), used()), indent=1, sort_keys=True) + "\n"
    if os.environ.get("UPDATE_GOLDENS") == "1":
        Path(GOLDEN).write_text(text)
    assert text == GOLDEN.read_text(), "run with UPDATE_GOLDENS=1, then build the console: scripts/console"
