"""The table of docs/benchmarks.md: a black-box load generator that is not part of this repository, on moorage and beside it
on the smallest server that runs the same graphs, in interleaved passes.

    .venv/bin/python bench/black_box.py [--passes 3] [--seconds 4] [--only d,e] [--bench FOLDER]

FOLDER holds `agent_bench.py`, `thin_server.py` and `bench_app/`; it is looked for in `../shared/bench` beside the
repository. Row 10, the start, and the rows with durability sync are those of agents.py. Each server has a PostgreSQL of its
own, which a third process holds, so that its CPU is counted apart.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from subjects import Subject, running

ROOT = Path(__file__).resolve().parent.parent
# What the thin server can do; the rest needs runs and threads.
THIN_LOADS = {"b", "c", "d", "e", "f", "g"}


@dataclass(frozen=True)
class Moorage(Subject):
    bench: Path = Path()

    def argv(self, port: int, home: Path) -> list[str]:
        config = self.bench / "bench_app" / "langgraph.json"
        return [
            sys.executable,
            "-m",
            "moorage",
            "serve",
            "--config",
            str(config),
            "--port",
            str(port),
            "--home",
            str(home),
        ]


@dataclass(frozen=True)
class Thin(Subject):
    bench: Path = Path()

    def argv(self, port: int, home: Path) -> list[str]:
        # The server reads PG_URL, and is given DATABASE_URI like every subject.
        start = (
            "import os, sys, uvicorn; sys.path.insert(0, sys.argv[1]); os.environ.update(MODE='graph', GC='1',"
            " SAVER=sys.argv[3], PG_URL=os.environ.get('DATABASE_URI', ''));"
            " uvicorn.run('thin_server:app', port=int(sys.argv[2]), log_level='warning', access_log=False)"
        )
        return [sys.executable, "-c", start, str(self.bench), str(port), "pg" if self.has_postgres else "mem"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--passes", type=int, default=3)
    options.add_argument("--seconds", type=float, default=4, help="how long a load lasts")
    options.add_argument("--only", default="b,c,d,e,f,g,i,a,h", help="loads of agent_bench.py")
    options.add_argument("--bench", type=Path, default=ROOT.parent / "shared" / "bench", metavar="FOLDER")
    chosen = options.parse_args()
    if not (chosen.bench / "agent_bench.py").exists():
        options.error(f"there is no agent_bench.py in {chosen.bench}; name its folder with --bench")
    with TemporaryDirectory(prefix="moorage-bench-") as folder:
        for turn in range(chosen.passes):
            # Who comes second finds warmer caches: that changes from pass to pass.
            for subject in _subjects(chosen.bench)[:: -1 if turn % 2 else 1]:
                loads = set(chosen.only.split(","))
                if isinstance(subject, Thin):
                    loads &= THIN_LOADS
                if loads:
                    _measure(chosen, subject, loads, Path(folder) / f"{subject.name}-{turn}.json")
        found = sorted(map(str, Path(folder).glob("*.json")))
        _run([sys.executable, str(chosen.bench / "agent_bench.py"), "--merge", *found])


def _subjects(bench: Path) -> list[Subject]:
    has_saver = importlib.util.find_spec("langgraph.checkpoint.postgres") is not None
    return [
        Moorage("moorage", has_postgres=True, bench=bench),
        *([Thin("thin-postgres", has_postgres=True, saver="postgres", bench=bench)] if has_saver else []),
        Thin("thin-memory", has_postgres=False, saver="memory", bench=bench),
    ]


def _measure(chosen: argparse.Namespace, subject: Subject, loads: set[str], out: Path) -> None:
    with running(subject) as server:
        pids = ["--server-pid", str(server.server_pid)]
        if server.postgres_pid:
            pids += ["--extra-pid", str(server.postgres_pid)]
        options = ["--label", subject.name, "--seconds", str(chosen.seconds), "--only", ",".join(sorted(loads))]
        address = ["--base-url", f"http://127.0.0.1:{server.port}", *pids]
        _run([sys.executable, str(chosen.bench / "agent_bench.py"), *address, *options, "--quiet", "--out", str(out)])


def _run(argv: list[str]) -> None:
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    main()
