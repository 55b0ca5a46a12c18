"""Hostile, broken and expensive filters, at every route that accepts one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psutil
from hypothesis import HealthCheck, Phase, given, settings

from moorage.kernel.errors import InvalidRequestError
from moorage.traces.records.runs import RunsFilter
from moorage.traces.searches import selection_of
from tests.faults.reports import Report, progress
from tests.faults.trace_bodies import Asker
from tests.platform.serving import Platform, make_platform
from tests.traces.filter_strategies import expressions, written
from tests.traces.ingest_rooms import make_run

PLAN_CPU_S_MAX = 5.0
_AT_ONCE = 4
_CANARY = "canary-of-another-workspace"
# The examples of the documentation, and filters that clients send.
CORPUS = (
    'gt(latency, "5s")',
    'and(gt(start_time,"2023-07-15T12:34:56Z"), or(neq(error,null), and(eq(feedback_key,"C"), eq(feedback_score,0.0))))',
    'and(or(has(tags,"experimental"), has(tags,"beta")), gt(latency, 2))',
    'and(eq(run_type,"llm"), eq(input_key,"messages.content"), like(input_value,"%messages.content%"))',
    "and(eq(is_root, true), eq(feedback_key, 'prompt_intent'))",
    'and(neq(metadata_key,"k"), neq(metadata_value,"v"))',
    'has(metadata, \'{"k": {"deep": ["v"]}}\')',
    'and(in(id, ["00000000-0000-0000-0000-000000000000"]), exists(metadata, "k"), not(exists(outputs)))',
    'search("three words here")',
    'search(name, "x")',
    'or(lt(end_time, "0001-01-01"), gt(end_time, "9999-12-31T23:59:59.999999Z"))',
    "and(gt(total_cost, 1e300), lt(prompt_tokens, -1e300), eq(execution_order, 1))",
    'like(name, "%' + "\\\\" * 100 + '%")',
    'like(inputs, "' + "%_" * 500 + '")',
)
HOSTILE = (
    *(
        "'",
        '"',
        "\\",
        "\\'",
        "') OR 1=1 --",
        "' OR '1'='1",
        "\\') OR 1=1 --",
        "x') UNION ALL SELECT * FROM trace_runs --",
    ),
    *("{tenant_id:UUID}", "{f0:String}", "%(tenant_id)s", "%s%n%d", "$1", "; DROP TABLE trace_run_rows", "/* */"),
    *(
        "\0",
        "a\0b",
        "\n\r\t",
        "\u2028",
        "\uffff",
        "😀",
        "x" * 10_000,
        "FORMAT Native",
        "SETTINGS max_threads=1",
        "NULL",
    ),
    *("\\N", "file('/etc/passwd')", "url('http://127.0.0.1')", "sleep(3)", "1 OR sleep(3)", "system.users", "%", "_"),
)
# Conditions that are expensive to plan. Each is repeated as often as a search accepts.
DEAR = {
    "tokens": "gt(total_tokens, {n})",
    "costs": "exists(total_cost)",
    "ids": 'eq(id, "{uuid}")',
    "traces": 'neq(trace_id, "{uuid}")',
    "threads": 'eq(thread_id, "t{n}")',
    "feedback": 'and(eq(feedback_key, "k{n}"), gt(feedback_score, {n}))',
    "one of the feedback": 'eq(feedback_comment, "k{n}")',
    "metadata": 'and(eq(metadata_key, "k{n}"), eq(metadata_value, "v"))',
    "many pairs": 'and(in(metadata_key, ["a{n}","b","c","d"]), in(metadata_value, ["1","2","3","4"]))',
    "keys": 'eq(input_key, "k{n}")',
    "deep keys": 'eq(input_key, "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p{n}")',
    "values": 'eq(output_value, "v{n}")',
    "objects": 'has(inputs, \'{{"a":{{"b":{{"c":{{"d":{n}}}}}}}}}\')',
    "deep paths": 'exists(inputs, "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p{n}")',
    "words": 'search("word{n}")',
    "many words": 'search("' + " ".join(f"w{{n}}x{number}" for number in range(40)) + '")',
    "foreign words": 'search("' + " ".join(f"wé{{n}}x{number}" for number in range(20)) + '")',
    "patterns": 'like(inputs, "%{n}%")',
    "tags": 'like(tags, "%{n}%")',
}
_SCOPES = ("filter", "trace_filter", "tree_filter", "search_filter")


async def trace_filters(folder: Path, *, examples: int = 500) -> Report:
    with make_platform(folder / "home", LOG_LEVEL="WARNING") as platform:
        report = hostile_filters(platform, examples=examples)
        dear_filters(platform, report, DEAR)
    return report


# --- hostile and broken -------------------------------------------------------------------------------------------------


@dataclass
class World:
    """A project with a run, and another workspace whose run must never be shown.

    Filters are sent to every route that accepts one, or to one route after the other.
    """

    asker: Asker
    project: str
    run_id: str
    everywhere: bool
    asked: int = 0
    # A list searches longer and longer times, each with its own statement.
    since: str = "1990-01-01T00:00:00Z"
    # A single statement takes half of the machine.
    askers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_AT_ONCE))

    def ask(self, text: str) -> Iterator[tuple[str, httpx.Response]]:
        v1 = {"session": [self.project], "limit": 5, "start_time": self.since}
        v2 = {"project_ids": [self.project], "min_start_time": self.since}
        queries: list[tuple[str, dict[str, Any]]] = [
            *(("/api/v1/runs/query", {**v1, scope: text}) for scope in _SCOPES),
            ("/api/v1/runs/query", {**v1, "query": text}),
            ("/api/v1/runs/stats", {"session": [self.project], "filter": text}),
            ("/api/v1/runs/group", {"session_id": self.project, "group_by": "conversation", "filter": text}),
            ("/api/v1/runs/query/validate", {"filter": text}),
            ("/api/v2/runs/query", {**v2, "filter": text}),
            ("/api/v2/traces/query", {**v2, "trace_filter": text}),
            ("/api/v2/threads/query", {"project_id": self.project, "filter": text}),
            ("/api/v1/sessions", {"filter": text[:5000]}),
        ]
        self.asked += 1
        wanted = queries if self.everywhere else [queries[self.asked % len(queries)]]
        for path, answer in self.askers.map(lambda query: self._ask(text, *query), wanted):
            if answer is not None:
                yield path, answer

    def _ask(self, text: str, path: str, body: dict[str, Any]) -> tuple[str, httpx.Response | None]:
        reads = {"method": "GET", "params": body} if path.endswith("sessions") else {"method": "POST", "json": body}
        return path, self.asker.ask(f"{text[:300]!r}", path=path, **reads)

    def check(self, text: str, *, selects: bool | None = None) -> None:
        """Check a filter: nothing of other workspaces is shown. `selects` tells whether the filter selects our run."""
        for path, answer in self.ask(text):
            self.asker.check(_CANARY not in answer.text, f"{text[:300]!r} at {path} shows another workspace's run")
            if selects is not None and path.endswith("v1/runs/query") and "runs" in answer.text[:10]:
                found = any(run["id"] == self.run_id for run in answer.json()["runs"])
                searched = b'"query":' in answer.request.content
                self.asker.check(searched or found is selects, f"{text[:300]!r} selects: {found}")

    def is_as_it_was(self) -> bool:
        run = self.asker.stored({"id": self.run_id})
        return run is not None and run["inputs"] == {"text": "ours"}


def make_world(platform: Platform, http: httpx.Client, *, everywhere: bool) -> World:
    asker = Asker(platform, http)
    made = http.post("/api/v1/workspaces", json={"display_name": "another"}).raise_for_status().json()
    other = make_run(at=datetime.now(UTC), name=_CANARY, inputs={"text": _CANARY}, tags=[_CANARY])
    http.post("/runs", json=other, headers={"X-Api-Key": made["api_key"]}).raise_for_status()
    ours = asker.run(name="ours", inputs={"text": "ours"}, tags=["ours"], extra={"metadata": {"k": "ours"}})
    http.post("/runs", json=ours).raise_for_status()
    stored = asker.stored(ours)
    assert stored is not None
    return World(asker, stored["session_id"], ours["id"], everywhere)


def hostile_filters(platform: Platform, *, examples: int, everywhere: bool = True) -> Report:
    report = Report("trace-filters")
    with platform.client() as http:
        world = make_world(platform, http, everywhere=everywhere)
        for text in CORPUS:
            world.check(text)
        for value in HOSTILE:
            for text in _with_value(value):
                world.check(text, selects=False)
        for _ in _SCOPES:
            world.check('and(eq(name, "ours"), has(tags, "ours"), eq(metadata_key, "k"))', selects=True)
        progress(f"corpus: {sum(world.asker.statuses.values())} answers")
        _random_filters(world, examples)
        world.asker.check(world.is_as_it_was(), "our run was changed")
        statuses = sorted(world.asker.statuses.items())
        report.tell(answers=", ".join(f"{status}: {count}" for status, count in statuses))
        report.tell(corpus=len(CORPUS), hostile_values=len(HOSTILE), random_filters=2 * examples)
        report.add(world.asker.wrongs)
    return report


def _with_value(value: str) -> Iterator[str]:
    """Put a value that no run has at places of each kind, also unquoted, where it makes the filter invalid."""
    quoted = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    yield f"and(eq(name, {quoted}), in(tags, [{quoted}]), eq(thread_id, {quoted}))"
    yield f"and(eq(metadata_key, {quoted}), eq(input_key, {quoted}), eq(output_value, {quoted}))"
    yield f"and(eq(feedback_key, {quoted}), exists(outputs, {quoted}))"
    yield f"eq(name, {value})"
    yield f"eq({value}, 1)"


def _random_filters(world: World, examples: int) -> None:
    """Yield valid random filters, and the same filters with something broken in them."""
    now = datetime.now(UTC)
    times = [now, now - timedelta(days=1), datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
    chance = random.Random(7)
    world.since = (now - timedelta(hours=2)).isoformat()

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(expressions([UUID(world.run_id), uuid4()], times))
    def ask(tree: Any) -> None:
        text = written(tree)
        world.check(text)
        world.check(_broken(text, chance))

    ask()


def _broken(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text))
    piece = chance.choice((*HOSTILE[:20], "(", ")", ",", "[", "]", "null", "-", "\\u0000", "\\ud800", "eq(", "9" * 40))
    return chance.choice((text[:at], text[:at] + piece + text[at:], text[:at] + text[at + 1 :], text[:at] + piece))


# --- dear ---------------------------------------------------------------------------------------------------------------


def largest(condition: str, scopes: tuple[str, ...]) -> dict[str, str]:
    """Return the condition, joined by or, as often as a search accepts it in all these scopes together."""
    least, most = 0, 127
    while most - least > 1:
        middle = (least + most) // 2
        try:
            selection_of(uuid4(), RunsFilter(session=[uuid4()], **_repeated(condition, middle, scopes)), indexed=True)
            least = middle
        except InvalidRequestError:
            most = middle
    return _repeated(condition, least, scopes) if least else {}


def _repeated(condition: str, count: int, scopes: tuple[str, ...]) -> dict[str, str]:
    return {scope: f"or({', '.join(_members(condition, count))})" for scope in scopes}


def _members(condition: str, count: int) -> Iterator[str]:
    return (condition.format(n=number, uuid=uuid4()) for number in range(count))


def dear_filters(platform: Platform, report: Report, conditions: dict[str, str]) -> None:
    """Measure how long the store plans the largest accepted searches when there is nothing to read."""
    store = psutil.Process(platform.engines()["clickhouse"])
    worst_s, worst = 0.0, ""
    with platform.client() as http:
        http.timeout = 120
        for name, condition in conditions.items():
            for scopes in (("filter",), ("trace_filter",), ("filter", "trace_filter", "tree_filter")):
                if not (filters := largest(condition, scopes)):
                    continue
                for path in ("/api/v1/runs/query", "/api/v1/runs/stats"):
                    spent_s = _spent(store, partial(_ask, http, report, path, filters))
                    if spent_s > worst_s:
                        worst_s, worst = spent_s, f"{name} in {' and '.join(scopes)} at {path}"
                        progress(f"{worst}: {worst_s:.2f} s of CPU")
    report.tell(dearest_filter_accepted=worst, its_cpu_s=worst_s)
    report.check(worst_s < PLAN_CPU_S_MAX, f"{worst} takes the store {worst_s:.1f} s")


def _ask(http: httpx.Client, report: Report, path: str, filters: dict[str, str]) -> None:
    answer = http.post(path, json={"session": [str(uuid4())], **filters})
    report.check(answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:200]}")


def _spent(process: psutil.Process, act: Callable[[], None]) -> float:
    before = sum(process.cpu_times()[:2])
    act()
    return sum(process.cpu_times()[:2]) - before
