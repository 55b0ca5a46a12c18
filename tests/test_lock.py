"""The lock: it has everything that pyproject.toml asks for, CI tests exactly these versions, and the bill of materials
is made from it.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text()
# From the name to the requirement that applies to this machine.
LOCKED = {
    canonicalize_name(found.name): found
    for line in re.findall(r"^([a-z0-9][^\\\n]*)", LOCK, re.MULTILINE)
    if (found := Requirement(line.strip())) and (found.marker is None or found.marker.evaluate())
}


def asked() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [Requirement(text) for text in (*project["dependencies"], *extras["platform"], *extras["dev"])]


def version(name: str) -> str:
    [pin] = LOCKED[canonicalize_name(name)].specifier
    assert pin.operator == "=="
    return pin.version


@pytest.mark.parametrize("requirement", asked(), ids=str)
def test_the_lock_has_what_is_asked_for(requirement: Requirement) -> None:
    assert canonicalize_name(requirement.name) in LOCKED, "run scripts/lock"
    assert requirement.specifier.contains(version(requirement.name), prereleases=True), "run scripts/lock"


def test_what_is_tested_is_what_is_locked() -> None:
    installed = {canonicalize_name(found.name): found.version for found in metadata.distributions()}
    other = {name: installed.get(name) for name in LOCKED if installed.get(name) != version(name)}
    assert not other, "run scripts/env"


def test_every_package_has_its_hash_and_no_host_is_named() -> None:
    assert LOCK.count("--hash=sha256:") >= len(LOCKED) > 100
    assert all("--hash" in block for block in re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:])
    assert not re.search(r"https?:|index-url|find-links| @ ", LOCK)


@pytest.mark.timeout(300)  # the tool is fetched the first time
def test_the_bill_of_materials_is_that_of_the_lock(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "sbom", tmp_path / "sbom.json"], check=True, timeout=280)
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    found = {part["name"]: part["version"] for part in bill["components"]}
    assert {name: found.get(name) for name in LOCKED} == {name: version(name) for name in LOCKED}
