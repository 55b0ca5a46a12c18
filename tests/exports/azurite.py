"""The official emulator of Azure Storage with keys, for tests: Azurite as one child process on a free port."""

from __future__ import annotations

import base64
import hmac
import re
import shutil
import subprocess
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Self

import httpx
import pytest

from tests.javascript import install_packages
from tests.platform.serving import environment

ACCOUNT = "moorage"
KEY = base64.b64encode(b"the key of the account").decode()
CONTAINER = "exports"
_PACKAGE = Path(__file__).parent / "javascript" / "package.json"
_BLOBS = "node_modules/azurite/dist/src/blob/main.js"
_VERSION = "2023-11-03"
_STOP_S = 5


class Azurite:
    """The emulator as a context: `with Azurite(cache, folder) as azure:`. It answers, and has one empty container."""

    def __init__(self, cache: pytest.Cache, folder: Path) -> None:
        shutil.copy(_PACKAGE, folder)
        self._folder = install_packages(cache, folder)

    def __enter__(self) -> Self:
        command = ["node", _BLOBS, "--blobPort", "0", "--inMemoryPersistence", "--silent", "--disableTelemetry"]
        account = environment(AZURITE_ACCOUNTS=f"{ACCOUNT}:{KEY}")
        self._process = subprocess.Popen(
            command, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=account
        )
        try:
            self.url = f"{self._await_address()}/{ACCOUNT}"
            self._make_container()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # it keeps everything in memory
        self._process.wait(_STOP_S)
        assert self._process.stdout
        self._process.stdout.close()

    def _await_address(self) -> str:
        assert self._process.stdout
        told = ""
        for line in self._process.stdout:
            told += line
            if found := re.search(r"successfully listens on (http://\S+)", line):
                return found[1]
        raise AssertionError(told)

    def _make_container(self) -> None:
        headers = {"x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), "x-ms-version": _VERSION}
        named = "".join(f"{name}:{value}\n" for name, value in headers.items())
        signed = "PUT" + 12 * "\n" + f"{named}/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        digest = hmac.digest(base64.b64decode(KEY), signed.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        made = httpx.put(f"{self.url}/{CONTAINER}?restype=container", headers=headers, timeout=5)
        assert made.status_code == 201, made.text
