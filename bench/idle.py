"""What a platform costs that nobody uses: CPU seconds a minute and memory of each of its processes.

    .venv/bin/python bench/idle.py --seconds 60

Starts `moorage up` on an empty home, lets it settle, and watches. Memory is PSS: what processes share is counted once.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

_SETTLES_S = 10


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def of_platform(home: Path) -> list[psutil.Process]:
    """The processes that name the home, and what they started: PostgreSQL's own do not name it."""
    named = [each for each in psutil.process_iter() if str(home) in _words(each)]
    return list({each.pid: each for root in named for each in (root, *root.children(recursive=True))}.values())


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def name_of(process: psutil.Process) -> str:
    words = _words(process)
    marks = {"caddy": "front door", "chdb_server": "trace store", "moorage up": "platform", "postgres": "PostgreSQL"}
    return next((name for mark, name in marks.items() if mark in words.replace(" -m moorage", " moorage")), "other")


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def measure(home: Path, seconds: float) -> None:
    before = {process: cpu_s(process) for process in of_platform(home)}
    time.sleep(seconds)
    cpu: dict[str, float] = {}
    memory: dict[str, float] = {}
    for process, since in before.items():
        if process.is_running():
            name = name_of(process)
            cpu[name] = cpu.get(name, 0.0) + (cpu_s(process) - since) * 60 / seconds
            memory[name] = memory.get(name, 0.0) + process.memory_full_info().pss / 1e6
    print("| process | CPU s a minute | memory MB |\n|---|---|---|")
    for name in sorted(cpu):
        print(f"| {name} | {cpu[name]:.2f} | {memory[name]:.0f} |")
    print(f"| all | {sum(cpu.values()):.2f} | {sum(memory.values()):.0f} |")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=60)
    given = options.parse_args()
    with TemporaryDirectory(prefix="moorage-idle-") as name:
        Path(name).chmod(0o755)  # under root the engines have a user of their own
        home = Path(name) / "home"
        command = [sys.executable, "-m", "moorage", "up", "--home", str(home), "--port", str(free_port()), "-o", "json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as platform:
            try:
                assert platform.stdout is not None
                json.loads(platform.stdout.readline())  # told when it serves
                time.sleep(_SETTLES_S)
                measure(home, given.seconds)
            finally:
                platform.terminate()


if __name__ == "__main__":
    main()
