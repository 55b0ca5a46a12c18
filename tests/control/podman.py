"""A podman of its own for tests: its engine serves the API of Docker on a socket, its images and containers lie in one folder.

No image comes from elsewhere: they are made of this machine's Python and a program.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.serving import free_port

_PYTHON = Path("/usr/bin/python3.11")
_LIBRARY = Path("/usr/lib/python3.11")
_LEFT_OUT = re.compile(
    r"__pycache__|/(test|config-[^/]*|ensurepip|lib2to3|idlelib|tkinter|pydoc_data|turtledemo|distutils)(/|$)"
)
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

    def import_image(self, tag: str, program: str, *, architecture: str = "amd64", user: str = "") -> None:
        """An image whose command runs a Python program. It holds nothing but Python and that."""
        archive = self.folder / "image.tar"
        with tarfile.open(archive, "w", dereference=True) as tar:
            for path in _files():
                tar.add(path, str(path).lstrip("/"), recursive=False)
            for name in ("tmp", "etc", "proc", "dev", "sys"):
                member = tarfile.TarInfo(name)
                member.type, member.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                tar.addfile(member)
            data = program.encode()
            member = tarfile.TarInfo("agent.py")
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
        command = f'CMD ["{_PYTHON}", "-u", "/agent.py"]'
        self("import", "--arch", architecture, "--change", command, str(archive), tag)
        archive.unlink()


def _files() -> Iterator[Path]:
    """Python's own, and the libraries that it is linked with, each at every name that it is asked for by."""
    yield _PYTHON
    found = {path for path in _LIBRARY.rglob("*") if not _LEFT_OUT.search(str(path)) and path.is_file()}
    programs: Sequence[Path] = [_PYTHON, *(path for path in found if path.suffix == ".so")]
    linked = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    yield from sorted(found)
    yield from sorted({Path(name) for name in re.findall(r"\s(/lib\S+) \(", linked)})


@contextmanager
def make_podman() -> Iterator[Podman]:
    """Skips the test where no container can be run, and says why."""
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
                cwd=folder,  # where it notes containers that were out of memory
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
    """The address of a registry that only opens to CREDENTIALS. Skips the test where there is no program for it."""
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
        while not _listens(port):
            assert registry.poll() is None, (folder / "registry.log").read_text()
            assert time.monotonic() < give_up_at, "the registry does not listen"
            time.sleep(0.02)
        yield f"127.0.0.1:{port}"
    finally:
        registry.terminate()
        registry.wait(20)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
