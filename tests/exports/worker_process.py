"""A process that only works on exports, to be killed: `python -m tests.exports.worker_process <JSON>`.

The JSON has conninfo, clickhouse_url, folder, secret (hex) and options; `file_bytes_max` limits what it may write to disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from moorage.kernel.crypto import MasterKeys
from tests.exports.platform import make_platform


async def _work(given: dict[str, Any]) -> None:
    keys = MasterKeys([bytes.fromhex(given["secret"])])
    async with make_platform(
        given["conninfo"], given["clickhouse_url"], Path(given["folder"]), keys=keys, **given["options"]
    ):
        await asyncio.sleep(600)


class WorkerProcess:
    """The process as a context: `with WorkerProcess(...) as worker: worker.kill()`. kill is kill -9, and the process
    may be restarted.
    """

    def __init__(self, **given: Any) -> None:
        self._given = given
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [sys.executable, "-m", "tests.exports.worker_process", json.dumps(self._given)]
        log = (Path(self._given["folder"]) / "worker.log").open("ab")
        with log:
            self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=log, cwd=Path(__file__).parents[2])

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(10)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if limit := given.get("file_bytes_max"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    os.environ.clear()
    asyncio.run(_work(given))
