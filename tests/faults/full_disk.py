"""PostgreSQL's data on a small file system that gets full."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

import httpx

from tests.faults.engines import seconds_until_up
from tests.faults.houses import House, house_in
from tests.faults.loads import MixedLoad, come_back, judge
from tests.faults.reports import Report, progress
from tests.serving import Server


def can_mount() -> bool:
    """Return True if this process can mount: it is root, and not in a container that forbids it."""
    if os.geteuid() != 0:
        return False
    with TemporaryDirectory(prefix="moorage-mount-") as probe:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", probe]
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
        if mounted:
            subprocess.run(["umount", probe], check=True)
    return mounted


@contextmanager
def small_file_system(place: Path, megabytes: int, mode: str = "0755") -> Iterator[Path]:
    """Mount a small file system in place of the directory's content, until the context ends."""
    place.mkdir(mode=0o755, parents=True, exist_ok=True)
    options = f"size={megabytes}m,mode={mode}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


async def full_disk(folder: Path, *, times: int = 3, full_s: float = 10) -> Report:
    report = Report("full-disk")
    with small_file_system(folder / "small", 400) as home, house_in(folder, home) as house:
        server = house.serve(BG_JOB_MAX_RETRIES="20")
        load = MixedLoad(house, [server], clients=8, seconds=0.4)
        back_s = []
        async with load.running():
            for number in range(times):
                await asyncio.sleep(3)
                before = load.ledger.answers["503"]
                await _fill_until_told(house, server, load, full_s)
                back_s.append(await asyncio.to_thread(seconds_until_up, server))
                told = load.ledger.answers["503"] - before
                progress(f"full {number + 1} of {times}: {told} told to try again, back after {back_s[-1]:.1f} s")
            await asyncio.sleep(2)
        joined = await come_back(load, server)
        await asyncio.to_thread(house.await_the_end_of_all_runs, 60)
        report.add(judge(load))
        answers = load.ledger.answers
        report.tell(times_full=times, runs_accepted=len(load.ledger.accepted), told_to_try_again=answers["503"])
        report.tell(answers_cut_half_way=answers["cut"], joined_again=joined, slowest_answer_s=load.ledger.slowest_s)
        report.tell(longest_until_service_was_back_s=max(back_s))
        report.check(answers["503"], "the disk was not full enough for anybody to notice")
    return report


async def _fill_until_told(house: House, server: Server, load: MixedLoad, seconds: float) -> None:
    """Fill the disk for this many seconds, including space that is freed meanwhile, and then up to a minute until a
    client was told.

    PostgreSQL has room in the pages and log segments that it already holds. Large threads use that up.
    """
    told = load.ledger.answers["503"]
    clock = asyncio.get_running_loop().time
    began = clock()
    filler = house.home / "filler"
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        with filler.open("wb") as out:
            while clock() < began + seconds or (load.ledger.answers["503"] == told and clock() < began + 60):
                fill(out.fileno())
                await asyncio.sleep(0.2)
                if clock() > began + seconds:
                    large = await client.post("/threads", json={"metadata": {"large": token_hex(2_000_000)}})
                    load.ledger.answers[str(large.status_code)] += 1
    filler.unlink()


def fill(out: int) -> None:
    for size in (2**20, 2**12):
        try:
            while True:
                os.write(out, b"\0" * size)
        except OSError:
            pass  # full, for pieces of this size
