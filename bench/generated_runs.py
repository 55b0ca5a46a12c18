"""Runs of `gen_runs.py`, a generator that is not part of this repository, as the official SDK sends them.

FILE is the generator's path. Its traces share questions, documents and system prompts as those of real agents do; its first
project has two thirds of the runs.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
from trace_bodies import RARE_WORD, Tree, multipart_parts

_SHARDS, _PROCESSES = 20, 2
_SEED, _PROJECTS = 7, 3
# Of so many traces of eight runs one says the rare word: one run of 3,200.
_RARE_EVERY = 400
_OUTPUT = '{"output": "'


def trees(generator: Path, first: datetime, last: datetime, runs: int) -> Iterator[Tree]:
    """Traces in the order of their start."""
    with TemporaryDirectory(prefix="moorage-bench-") as folder:
        _generate(generator, Path(folder), first, last, runs)
        rows = itertools.chain.from_iterable(_rows(file) for file in sorted(Path(folder).glob("*.parquet")))
        for number, (_, trace) in enumerate(itertools.groupby(rows, lambda row: row["trace_id"])):
            yield _tree(list(trace), rare=number % _RARE_EVERY == 0)


def _generate(generator: Path, folder: Path, first: datetime, last: datetime, runs: int) -> None:
    sys.path.insert(0, str(generator.parent))
    shard = importlib.import_module(generator.stem).shard
    since_us, step_us = first.timestamp() * 1e6, (last - first).total_seconds() * 1e6 / _SHARDS
    jobs = [
        (
            str(folder),
            _SEED,
            number,
            runs * (number + 1) // _SHARDS - runs * number // _SHARDS,
            since_us + step_us * number,
            since_us + step_us * (number + 1),
            _PROJECTS,
            1.0,
        )
        for number in range(_SHARDS)
    ]
    with ProcessPoolExecutor(_PROCESSES) as processes:
        list(processes.map(shard, jobs))


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    for batch in pq.ParquetFile(file).iter_batches(2000):
        yield from batch.to_pylist()


def _tree(runs: list[dict[str, Any]], *, rare: bool) -> Tree:
    metadata = json.loads(runs[0]["extra"])["metadata"]
    tree = Tree(runs[0]["id"], [run["id"] for run in runs], metadata["user_id"], metadata["thread_id"])
    if rare and runs[0]["outputs"]:
        runs[0]["outputs"] = runs[0]["outputs"].replace(_OUTPUT, f"{_OUTPUT}{RARE_WORD} ", 1)
    for run in runs:
        key = {
            "id": run["id"],
            "trace_id": run["trace_id"],
            "dotted_order": run["dotted_order"],
            "session_name": f"bench-{int(run['session_id'][-2:], 16) - 100}",
        }
        if run["parent_run_id"]:
            key["parent_run_id"] = run["parent_run_id"]
        begun = {
            "name": run["name"],
            "run_type": run["run_type"],
            "start_time": run["start_time"].isoformat(),
            "tags": run["tags"],
        }
        ended = {"end_time": run["end_time"].isoformat()} | ({"error": run["error"]} if run["error"] else {})
        late: list[tuple[str, object]] = [("", {**key, **ended})]
        late += [(f".{name}", run[name].encode()) for name in ("outputs", "events") if run[name]]
        if run["run_type"] == "llm":
            late.append((".extra", _with_usage(run)))
        texts = [(f".{name}", run[name].encode()) for name in ("inputs", "extra")]
        tree.post += multipart_parts("post", run["id"], [("", {**key, **begun}), *texts])
        tree.patch += multipart_parts("patch", run["id"], late)
    return tree


def _with_usage(run: dict[str, Any]) -> dict[str, Any]:
    """The run's `extra` as it is after the end: the model has said what it used."""
    extra: dict[str, Any] = json.loads(run["extra"])
    extra["metadata"]["usage_metadata"] = {
        "input_tokens": run["prompt_tokens"],
        "output_tokens": run["completion_tokens"],
        "total_tokens": run["total_tokens"],
        "input_cost": run["prompt_cost"],
        "output_cost": run["completion_cost"],
        "total_cost": run["total_cost"],
    }
    return extra
