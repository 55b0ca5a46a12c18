"""What the benchmark of exports starts and counts: a platform, an S3 server, the CPU and the memory of an export."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import httpx
import psutil
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, S3FileSystem

from moorage.kernel.errors import MoorageError

_ROOT = Path(__file__).parents[1]
_KEY, _WORKSPACE_ID = "bench-key-" + "0" * 32, UUID(int=1 << 100 | 1)
_START_S, _STOP_S, _EXPORT_S = 120, 60, 3600
_SAMPLE_S = 0.05
_EXPORTS = "/api/v1/bulk-exports"
_CEILING_FILES = 3
_IDLE_S = 5
# Looking costs the platform's CPU too.
_LOOK_S = 0.5


class Platform:
    """`with Platform(home) as platform:` - a `moorage up` that serves, and its engines.

    `key`: of a home that has a workspace already. Else one is made.
    """

    def __init__(self, home: Path, key: str | None = None) -> None:
        self._home = home
        self._has_workspace = key is not None
        self.key, self.workspace_id = key or _KEY, _WORKSPACE_ID

    def __enter__(self) -> Self:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "moorage", "up", "--port", str(port), "--home", str(self._home)]
        settings = {"MOORAGE_BOOTSTRAP_API_KEY": _KEY, "MOORAGE_BOOTSTRAP_WORKSPACE_ID": str(_WORKSPACE_ID)}
        settings = {} if self._has_workspace else settings
        self._log = self._home.with_name("platform.log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **settings})
        self._http = httpx.Client(base_url=self.url, headers={"X-Api-Key": self.key}, timeout=60)
        give_up_at = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise MoorageError(f"the platform does not start: {self._log.read_text()}")
            time.sleep(0.1)
        self.writer = psutil.Process(self._process.pid)
        engine = (self._home / "clickhouse" / "server.lock").read_text().split()[0]
        self.engine = psutil.Process(int(engine))
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _answers(self) -> bool:
        try:
            return self._http.get("/ok").status_code == 200
        except httpx.HTTPError:
            return False

    def get(self, path: str) -> Any:
        return self._http.get(path).raise_for_status().json()

    def project(self, name: str) -> str:
        """Its id; made when it is not there."""
        made = self._http.post("/api/v1/sessions?upsert=true", json={"name": name}).raise_for_status()
        return str(made.json()["id"])

    def destination(self, s3: S3) -> str:
        config = {"bucket_name": s3.bucket, "prefix": "bench", "endpoint_url": s3.url}
        body = {"display_name": "bench", "config": config, "credentials": s3.credentials}
        answer = self._http.post(f"{_EXPORTS}/destinations", json=body)
        if answer.status_code != 200:
            raise MoorageError(answer.text)
        return str(answer.json()["id"])

    def order(self, destination_id: str, session_id: str, more: dict[str, Any]) -> Any:
        body = {"bulk_export_destination_id": destination_id, "session_id": session_id, **more}
        return self._http.post(_EXPORTS, json=body).raise_for_status().json()

    def cancel(self, export_id: str) -> None:
        self._http.patch(f"{_EXPORTS}/{export_id}", json={"status": "Cancelled"}).raise_for_status()

    def rows_and_bytes(self, export_id: str) -> tuple[int, int]:
        results = [run["metadata"]["result"] for run in self.get(f"{_EXPORTS}/{export_id}/runs")]
        return sum(each["rows_written"] for each in results), sum(each["bytes_written"] for each in results)


class S3:
    """`with S3() as s3:` - SeaweedFS as the tests start it, with credentials and one bucket."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.exports.seaweed"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
        assert self._process.stdout is not None
        access = json.loads(self._process.stdout.readline())
        self.url, self.bucket = access["endpoint_url"], access["bucket_name"]
        self.credentials = {name: access[name] for name in ("access_key_id", "secret_access_key")}
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(_STOP_S)

    def files(self) -> S3FileSystem:
        return S3FileSystem(
            access_key=self.credentials["access_key_id"],
            secret_key=self.credentials["secret_access_key"],
            endpoint_override=self.url.partition("://")[2],
            scheme="http",
            region="us-east-1",
        )


@dataclass(frozen=True)
class Exported:
    """One export: what it wrote, and what it took of the process that writes and of the engine."""

    export_id: str
    rows: int
    size_bytes: int
    wall_s: float
    writer_cpu_s: float
    engine_cpu_s: float
    over_idle_mb: float

    @property
    def rows_per_cpu_s(self) -> float:
        return self.rows / (self.writer_cpu_s + self.engine_cpu_s)


class _Peak:
    """The most memory that two processes have together while it is watched."""

    def __init__(self, *processes: psutil.Process) -> None:
        self._processes = processes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.idle_bytes = self.peak_bytes = self._now()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _now(self) -> int:
        return sum(each.memory_info().rss for each in self._processes)

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, self._now())


def exported(
    platform: Platform, destination_id: str, session_id: str, since: datetime, days: int, version: str
) -> Exported:
    """Write some days and say what it took. Both processes are left alone for a while before, to be idle."""
    time.sleep(_IDLE_S)
    until = since + timedelta(days=days)
    more = {"start_time": since.isoformat(), "end_time": until.isoformat(), "format_version": version}
    with _Peak(platform.writer, platform.engine) as memory:
        before = [_cpu_s(each) for each in (platform.writer, platform.engine)]
        begun_at = time.monotonic()
        export_id = platform.order(destination_id, session_id, more)["id"]
        while (export := platform.get(f"{_EXPORTS}/{export_id}"))["status"] in {"Created", "Running"}:
            if time.monotonic() - begun_at > _EXPORT_S:
                raise MoorageError(f"the export does not end: {export}")
            time.sleep(_LOOK_S)
        wall_s = time.monotonic() - begun_at
        after = [_cpu_s(each) for each in (platform.writer, platform.engine)]
    if export["status"] != "Completed":
        raise MoorageError(f"the export failed: {export}")
    rows, size_bytes = platform.rows_and_bytes(export_id)
    writer_cpu_s, engine_cpu_s = (new - old for new, old in zip(after, before, strict=True))
    over_idle_mb = (memory.peak_bytes - memory.idle_bytes) / 1e6
    return Exported(export_id, rows, size_bytes, wall_s, writer_cpu_s, engine_cpu_s, over_idle_mb)


def ceiling_rows_per_cpu_s(s3: S3, export_id: str) -> float:
    """How many rows of some of its files pyarrow encodes in a CPU second when all is in memory already: the best of
    three.
    """
    files = s3.files()
    selector = FileSelector(f"{s3.bucket}/bench/export_id={export_id}", recursive=True)
    paths = [each.path for each in files.get_file_info(selector) if each.is_file][:_CEILING_FILES]
    best = 0.0
    for path in paths:
        with files.open_input_file(path) as file:
            table, groups = pq.read_table(file), pq.ParquetFile(file).num_row_groups
        for _ in range(3):
            begun = time.process_time()
            size = table.num_rows // groups + 1
            pq.write_table(table, BytesIO(), compression="zstd", compression_level=1, row_group_size=size)
            best = max(best, table.num_rows / (time.process_time() - begun))
    return best


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
