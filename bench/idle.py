"""What a platform costs that nobody uses: CPU seconds a minute and memory of each of its processes.

    .venv/bin/python bench/idle.py --seconds 60

Starts `moorage up` on an empty home, lets it settle, and watches. Memory is PSS: what processes share is counted once. So what
is mapped from files, of which programs and libraries are most, counts less where another process on the machine maps the
same file, such as a second platform or a test of the same environment: it is shown by itself, and who else maps the library
of the trace store is said.
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


def mapped_bytes(process: psutil.Process) -> int:
    """The part of PSS that is pages of files, which the kernel can drop and read again."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_File:"))


def others_with_library(mine: list[psutil.Process]) -> int:
    """How many processes of others map the library of the trace store, wherever they have it from."""
    known, found = {process.pid for process in mine}, 0
    for process in psutil.process_iter():
        try:
            found += process.pid not in known and "chdb" in Path(f"/proc/{process.pid}/maps").read_text()
        except OSError:
            continue
    return found


def measure(home: Path, seconds: float) -> None:
    before = {process: cpu_s(process) for process in of_platform(home)}
    time.sleep(seconds)
    cpu: dict[str, float] = {}
    memory: dict[str, float] = {}
    mapped: dict[str, float] = {}
    for process, since in before.items():
        if process.is_running():
            name = name_of(process)
            cpu[name] = cpu.get(name, 0.0) + (cpu_s(process) - since) * 60 / seconds
            memory[name] = memory.get(name, 0.0) + process.memory_full_info().pss / 1e6
            mapped[name] = mapped.get(name, 0.0) + mapped_bytes(process) / 1e6
    print("| process | CPU s a minute | memory MB | of it mapped from files |\n|---|---|---|---|")
    for name in sorted(cpu):
        print(f"| {name} | {cpu[name]:.2f} | {memory[name]:.0f} | {mapped[name]:.0f} |")
    print(f"| all | {sum(cpu.values()):.2f} | {sum(memory.values()):.0f} | {sum(mapped.values()):.0f} |")
    print(f"\nOthers that map the library of the trace store: {others_with_library(list(before))}")


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
