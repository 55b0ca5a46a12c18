"""From samples to numbers: metrics of a pass, their median and spread over the passes, the tables, the gate."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from scenarios import SCENARIOS, START, Sample, Scenario
from subjects import MOORAGE, Start

GATE_FACTOR_MAX = 1.5
# The operating system counts CPU in hundredths of a second, so that less than this is mostly rounding.
CPU_S_MIN = 0.2

PACKAGES = ["moorage", "langgraph", "langgraph-checkpoint", "uvicorn", "uvloop", "orjson", "psycopg"]

Metrics = dict[str, float]
Passes = list[dict[str, dict[str, Metrics]]]  # each: scenario -> subject -> metrics
Summary = dict[str, dict[str, dict[str, dict[str, float]]]]  # scenario -> subject -> metric -> median, min, max


def metrics_of(sample: Sample) -> Metrics:
    operations = max(1, sample.operations)
    found = {
        "per_s": sample.operations / sample.wall_s if sample.wall_s else 0.0,
        "server_cpu_ms": sample.server_cpu_s * 1000 / operations,
        "postgres_cpu_ms": sample.postgres_cpu_s * 1000 / operations,
        "cpu_ms": (sample.server_cpu_s + sample.postgres_cpu_s) * 1000 / operations,
        "cpu_s": sample.server_cpu_s + sample.postgres_cpu_s,
        "operations": sample.operations,
        "failures": sample.failures,
    }
    if sample.times_s:
        found |= {"p50_ms": quantile(sample.times_s, 0.5) * 1000, "p99_ms": quantile(sample.times_s, 0.99) * 1000}
    if sample.first_data_s:
        found["first_data_p50_ms"] = quantile(sample.first_data_s, 0.5) * 1000
        found["first_data_p99_ms"] = quantile(sample.first_data_s, 0.99) * 1000
    return found


def metrics_of_start(start: Start) -> Metrics:
    return {**asdict(start), "failures": 0}


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def add_ratios(results: dict[str, Metrics]) -> None:
    """How ours relates to each ceiling of the same pass, which met the same neighbours on the machine."""
    ours = results.get(MOORAGE.name, {})
    for name, ceiling in results.items():
        if name != MOORAGE.name:
            for metric in ("per_s", "cpu_ms"):
                if ours.get(metric) and ceiling.get(metric):
                    ceiling[f"ratio_{metric}"] = ours[metric] / ceiling[metric]


def summarise(passes: Passes) -> Summary:
    collected: dict[tuple[str, str, str], list[float]] = {}
    for name, subject, metric, value in _values(passes):
        collected.setdefault((name, subject, metric), []).append(value)
    summary: Summary = {}
    for (name, subject, metric), values in collected.items():
        spread = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        summary.setdefault(name, {}).setdefault(subject, {})[metric] = spread
    return summary


def _values(passes: Passes) -> Iterator[tuple[str, str, str, float]]:
    for results in passes:
        for name, of_subjects in results.items():
            for subject, metrics in of_subjects.items():
                for metric, value in metrics.items():
                    yield name, subject, metric, value


# --- tables ---


def tables(summary: Summary, options: dict[str, Any]) -> str:
    machine = "; ".join(f"{name} {value}" for name, value in _machine().items())
    load = ", ".join(f"{name} {value}" for name, value in options.items())
    parts = [f"Median (least-most) of the passes. {load}. {machine}."]
    if loads := [(each, summary[each.name]) for each in SCENARIOS if each.name in summary]:
        parts.append(_load_table(loads))
    if starts := summary.get(START):
        parts.append(_start_table(starts))
    return "\n\n".join(parts)


def _load_table(loads: list[tuple[Scenario, dict[str, Any]]]) -> str:
    head = ["#", "what", "server", "per s", "p50 ms", "p99 ms", "CPU ms: server", "PostgreSQL"]
    head += ["ours / ceiling: rate", "CPU", "target"]
    rows = []
    for scenario, of_subjects in loads:
        for subject, found in of_subjects.items():
            is_ours = subject == MOORAGE.name
            what = f"{scenario.what}, per {scenario.unit}; times: {scenario.timed}" if is_ours else ""
            cells = [scenario.row if is_ours else "", what, subject]
            cells += [_cell(found, metric) for metric in ("per_s", "p50_ms", "p99_ms", "server_cpu_ms")]
            cells += [_cell(found, "postgres_cpu_ms") if found["postgres_cpu_ms"]["max"] else "-"]
            cells += [_cell(found, "ratio_per_s"), _cell(found, "ratio_cpu_ms"), scenario.target if is_ours else ""]
            rows.append(cells)
            if notes := _notes(scenario, found):
                rows.append(["", notes, *[""] * (len(head) - 2)])
    return _markdown(head, rows)


def _notes(scenario: Scenario, found: dict[str, dict[str, float]]) -> str:
    notes = []
    if scenario.is_heavy and "first_data_p99_ms" in found:
        done, failed = found["operations"]["median"], found["failures"]["median"]
        notes.append(f"{done / max(1, done + failed):.1%} succeeded")
        notes.append(f"first data p99 {_cell(found, 'first_data_p99_ms')} ms, CPU {_cell(found, 'cpu_s')} s")
    if failures := found["failures"]["max"]:
        notes.append(f"**{failures:.0f} failures**")
    return "; ".join(notes)


def _start_table(starts: dict[str, Any]) -> str:
    rows = []
    for subject, found in starts.items():
        target = "≤ 2.5 s, then ≤ 1.5 s; ≤ 110 MB" if subject == MOORAGE.name else ""
        rows.append(["10", subject, *(_cell(found, metric) for metric in ("first_s", "later_s", "idle_mb")), target])
    return _markdown(["#", "server", "first start to /ok, s", "later start, s", "idle, MB", "target"], rows)


def _cell(found: dict[str, dict[str, float]], metric: str) -> str:
    if metric not in found:
        return ""
    spread = found[metric]
    if spread["min"] == spread["max"]:
        return number(spread["median"])
    return f"{number(spread['median'])} ({number(spread['min'])}-{number(spread['max'])})"


def number(value: float) -> str:
    """Three digits that matter."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# --- files ---


def write_json(path: Path, options: dict[str, Any], passes: Passes, summary: Summary) -> None:
    written = {"machine": _machine(), "options": options, "summary": summary, "passes": passes}
    path.write_text(json.dumps(_rounded(written), indent=1) + "\n")


def _machine() -> dict[str, Any]:
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


# --- gate ---


def gate(summary: Summary, baseline: Summary) -> tuple[list[str], bool]:
    """A line for each load that was measured, and whether all is well. A gate that could judge nothing is not passed."""
    lines, judged, passed = [], 0, True
    for name, of_subjects in summary.items():
        ours, base = of_subjects.get(MOORAGE.name, {}), baseline.get(name, {}).get(MOORAGE.name, {})
        if "cpu_ms" not in ours:
            continue
        if "cpu_ms" not in base:
            lines.append(f"{name}: not in the baseline")
        elif ours["cpu_s"]["median"] < CPU_S_MIN:
            lines.append(f"{name}: too short to judge, {ours['cpu_s']['median']:.2f} s of CPU")
        else:
            judged += 1
            now, before = ours["cpu_ms"]["median"], base["cpu_ms"]["median"]
            is_fine = now <= GATE_FACTOR_MAX * before
            passed = passed and is_fine
            verdict = "ok" if is_fine else f"FAILED, over {GATE_FACTOR_MAX}x"
            lines.append(f"{name}: {now:.3f} ms CPU, baseline {before:.3f} ms, {now / before:.2f}x: {verdict}")
    return lines, passed and judged > 0
