"""OpenSSH's server, which serves git repositories to clients with one of its authorized keys."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from moorage.control.deploy_keys import make_key_pair
from tests.serving import free_port, listens

_CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
AuthorizedKeysFile {folder}/authorized
SetEnv GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=*
"""


@dataclass(frozen=True)
class SshServer:
    folder: Path
    port: int
    host_key: str

    @property
    def url(self) -> str:
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def authorize(self, *public_keys: str) -> None:
        """Authorize exactly these keys."""
        (self.folder / "authorized").write_text("".join(f"{key}\n" for key in public_keys))


@contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    """Start the server. Skips the test if its program is missing."""
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin")
    if program is None:
        pytest.skip("sshd is not installed")
    private, public = make_key_pair("host")
    server = SshServer(folder, free_port(), public.rsplit(" ", 1)[0])
    server.authorize()
    (folder / "host_key").touch(0o600)
    (folder / "host_key").write_text(private)
    (folder / "config").write_text(_CONFIG.format(port=server.port, folder=folder))
    Path("/run/sshd").mkdir(exist_ok=True)  # for its separation of privileges
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "config")], stderr=log)
    try:
        give_up_at = time.monotonic() + 20
        while not listens(server.port):
            assert process.poll() is None, server.log
            assert time.monotonic() < give_up_at, server.log
            time.sleep(0.02)
        yield server
    finally:
        process.terminate()
        process.wait(20)
