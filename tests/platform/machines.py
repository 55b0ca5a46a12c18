"""Second machines of a platform: `moorage listener` on homes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.platform.serving import Platform, environment, moorage
from tests.serving import free_port
from tests.waiting import wait_until

ENVIRONMENT = {"MOORAGE_AGENT_START_SECONDS": "240"}


@dataclass
class Machine:
    """A `moorage listener` with its own home. `platform_url` is the platform's address for it, if
    it differs from ours.
    """

    platform: Platform
    home: Path
    platform_url: str = ""
    name: str = "shed"
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "moorage", "listener", self.name, "--home", str(self.home)]
        url = self.platform_url or self.platform.url
        told = {"MOORAGE_URL": url, "MOORAGE_API_KEY": self.platform.key, **ENVIRONMENT}
        with self.home.with_name(f"{self.home.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)], env=environment(**told), stdout=log, stderr=log
            )
        wait_until(self.is_connected, 300)

    def is_connected(self) -> bool:
        with self.platform.client() as api:
            listeners = api.get("/v2/listeners").json()["resources"]
        return any(each["is_connected"] for each in listeners if each["compute_id"] == self.name)

    @property
    def key(self) -> str:
        return json.loads((self.home / "listener.json").read_text())["key"]

    def own(self) -> list[dict[str, Any]]:
        """Return the deployments of the machine's own moorage."""
        answer = httpx.get(f"http://127.0.0.1:{self.port}/v2/deployments", headers={"X-Api-Key": self.key})
        return answer.json()["resources"]

    def agent_process(self) -> int:
        """Return the number of the first process that serves an agent on this machine."""
        mark = f"{self.home}/agents/"
        return min(
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if mark in " ".join(process.info["cmdline"] or ()) and "serve" in (process.info["cmdline"] or ())
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(120)


@contextmanager
def make_machine(platform: Platform, home: Path, platform_url: str = "") -> Iterator[Machine]:
    machine = Machine(platform, home, platform_url)
    try:
        machine.start()
        yield machine
    finally:
        if machine.process is not None:
            machine.process.kill()
            machine.process.wait()
        moorage("down", "--home", home)
