"""Pack this installation as the wheel of the agent server that each revision's environment gets.

The agent server is never resolved by name from a registry: a revision must use the same protocol as the platform that
made it, and someone else could own the name there. An installation from a checkout and one from a wheel are packed
alike, from their files.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import moorage
from moorage.kernel.errors import StartupError

_NAME = "moorage"
_MADE_AT = (1980, 1, 1, 0, 0, 0)  # the earliest time of a zip; fixed, so that equal files give equal wheels


def agent_wheel(given: Path | None, folder: Path) -> Path:
    """Return the wheel to install: the one that `MOORAGE_AGENT_WHEEL` names, or this installation, packed once into
    `folder`.

    The version carries a hash of the content, so that no installer mistakes one state of the code for another.
    """
    if given is not None:
        if given.suffix != ".whl" or not given.is_file():
            raise StartupError("MOORAGE_AGENT_WHEEL does not name a wheel file.")
        return given.resolve()
    files = _package_files()
    version = f"{moorage.__version__}+{_hash(files)}"
    wheel = folder / f"{_NAME}-{version}-py3-none-any.whl"
    if not wheel.exists():
        folder.mkdir(parents=True, exist_ok=True)
        building = wheel.with_suffix(".building")
        _write(building, version, files)
        building.replace(wheel)
    return wheel


def _package_files() -> dict[str, bytes]:
    """Return the package's files by their path in a wheel, in a fixed order. Leaves out the console, which agents do
    not serve.
    """
    root = Path(moorage.__file__).parent
    left_out = {"__pycache__", "console"}
    paths = sorted(
        path for path in root.rglob("*") if path.is_file() and left_out.isdisjoint(path.relative_to(root).parts)
    )
    return {f"{_NAME}/{path.relative_to(root).as_posix()}": path.read_bytes() for path in paths}


def _hash(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]


def _write(wheel: Path, version: str, files: dict[str, bytes]) -> None:
    info = f"{_NAME}-{version}.dist-info"
    own = distribution(_NAME)
    metadata = re.sub(r"(?m)^Version: .*$", f"Version: {version}", own.read_text("METADATA") or "", count=1)
    described = {
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: moorage\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": (own.read_text("entry_points.txt") or "").encode(),
    }
    content = files | described
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in content.items()]
    record = "\n".join([*lines, f"{info}/RECORD,,\n"]).encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (content | {f"{info}/RECORD": record}).items():
            member = zipfile.ZipInfo(name, _MADE_AT)
            member.external_attr = 0o644 << 16
            archive.writestr(member, data, zipfile.ZIP_DEFLATED)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
