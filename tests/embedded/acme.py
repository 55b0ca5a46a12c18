"""A real ACME server: Caddy's own, with its own CA. It resolves the test's names by a hosts file of its own."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.serving import free_port

from moorage.control.isolation import find_bubblewrap
from moorage.embedded import caddy


class AcmeServer:
    """The server. `directory` is where clients begin, `roots` the certificate that they have to trust.

    `hosts` are addresses by name, at which the server checks that a client controls the name. It refuses the name
    `refused`.
    """

    def __init__(self, folder: Path, hosts: Mapping[str, str], refused: str) -> None:
        self.port = free_port()
        self.directory = f"https://localhost:{self.port}/acme/local/directory"
        self.roots = folder / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        self.log = folder / "acme.log"
        self._folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "acme.json").write_text(json.dumps(_config(self.port, folder, refused)))
        hosts = {"localhost": "127.0.0.1", **hosts}
        (folder / "hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))

    @contextmanager
    def running(self) -> Iterator[AcmeServer]:
        environment = {
            "XDG_DATA_HOME": str(self._folder),
            "XDG_CONFIG_HOME": str(self._folder),
            "HOME": str(self._folder),
        }
        command = [
            str(find_bubblewrap()),
            "--dev-bind",
            "/",
            "/",
            "--ro-bind",
            str(self._folder / "hosts"),
            "/etc/hosts",
            "--die-with-parent",
        ]
        command += [str(caddy._program()), "run", "--config", str(self._folder / "acme.json")]
        with self.log.open("wb") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server:
            try:
                give_up_at = time.monotonic() + 30
                while not self._answers():
                    assert server.poll() is None, self.log.read_text()
                    assert time.monotonic() < give_up_at, self.log.read_text()
                    time.sleep(0.02)
                yield self
            finally:
                server.kill()

    def _answers(self) -> bool:
        """Return True once the server answers. Its own certificate comes a moment after it listens, and a client that
        comes before waits a minute.
        """
        try:
            trusting = ssl.create_default_context(cafile=str(self.roots))
            with socket.create_connection(("127.0.0.1", self.port), 1) as plain:
                trusting.wrap_socket(plain, server_hostname="localhost").close()
        except OSError:
            return False
        return True


def _config(port: int, folder: Path, refused: str) -> dict[str, object]:
    handler = {"handler": "acme_server", "host": f"localhost:{port}", "policy": {"deny": {"domains": [refused]}}}
    return {
        "admin": {"disabled": True},
        "storage": {"module": "file_system", "root": str(folder / "caddy")},
        "apps": {
            "http": {
                "servers": {
                    "acme": {
                        "listen": [f"127.0.0.1:{port}"],
                        "automatic_https": {"disable": True},
                        "tls_connection_policies": [{}],
                        "protocols": ["h1"],
                        "routes": [{"handle": [handler]}],
                    }
                }
            },
            "tls": {
                # At its start Caddy removes empty folders, and so also the folder of a certificate that is just being
                # written.
                "disable_storage_clean": True,
                "certificates": {"automate": ["localhost"]},
                "automation": {"policies": [{"issuers": [{"module": "internal"}]}]},
            },
            "pki": {"certificate_authorities": {"local": {"install_trust": False}}},
        },
    }
