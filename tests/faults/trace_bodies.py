"""Broken, too big and odd bodies, sent to every route of traces that accepts one."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice, product
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

import httpx
import psutil
import zstandard
from langsmith import Client

from tests.faults.houses import rss_mb
from tests.faults.payloads import MB, ODD
from tests.faults.reports import Report, progress
from tests.platform.leaks import leaks_in, secrets_of
from tests.platform.serving import Platform, make_platform
from tests.traces.ingest_rooms import BOUNDARY, MULTIPART, encode_parts, make_run, update_of

RSS_GROWTH_MB_MAX = 700
CPU_S_MAX = 120
_DELIVERIES_MAX = 20
_NOW = datetime.now(UTC)
_START = f"{_NOW:%Y%m%dT%H%M%S%fZ}"


@dataclass
class Asker:
    """Sends requests, and records what must not happen: a 5xx, a cut connection, an answer that leaks."""

    platform: Platform
    http: httpx.Client
    project: str = field(default_factory=lambda: f"bodies-{uuid4().hex[:8]}")
    statuses: Counter[int] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.secrets = secrets_of(self.platform)
        self._counting = Lock()

    def ask(self, what: str, method: str, path: str, **more: Any) -> httpx.Response | None:
        try:
            answer = self._answer(method, path, **more)
        except httpx.TransportError as error:
            self.wrong(f"{what}: {error!r}")
            return None
        with self._counting:  # several tasks may ask at once
            self.statuses[answer.status_code] += 1
        if answer.status_code >= 500:
            self.wrong(f"{what}: {answer.status_code} {answer.text[:200]}")
        self.look_for_leaks(what, answer)
        return answer

    def _answer(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Return the answer with its body. A stream of events may go on for ever, so it is closed unread."""
        with self.http.stream(method, path, **more) as answer:
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                return httpx.Response(answer.status_code, headers=answer.headers, request=answer.request)
            answer.read()
        return answer

    def look_for_leaks(self, what: str, answer: httpx.Response) -> None:
        for leak in leaks_in(answer, self.secrets):
            self.wrong(f"{what}: {leak}")

    def expect(self, status: int | set[int], what: str, method: str, path: str, **more: Any) -> None:
        answer = self.ask(what, method, path, **more)
        statuses = {status} if isinstance(status, int) else status
        if answer is not None and answer.status_code not in statuses:
            self.wrong(f"{what}: {answer.status_code} {answer.text[:200]}, not {status}")

    def deliver(self, what: str, method: str, path: str, **more: Any) -> None:
        """Send as clients do: again, when the answer says to retry."""
        for _ in range(_DELIVERIES_MAX):
            answer = self.http.request(method, path, **more)
            if answer.status_code not in {429, 503}:
                break
            time.sleep(1)
        self.check(answer.status_code == 202, f"{what}: {answer.status_code} {answer.text[:200]}")

    def run(self, parent: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        return make_run(parent, at=None if parent else datetime.now(UTC), session_name=self.project, **fields)

    def stored(self, run: dict[str, Any]) -> dict[str, Any] | None:
        answer = self.ask(f"reading {run['id']}", "GET", f"/api/v1/runs/{run['id']}")
        return answer.json() if answer is not None and answer.status_code == 200 else None

    def check(self, right: object, wrong: str) -> None:
        if not right:
            self.wrong(wrong)

    def wrong(self, text: str) -> None:
        progress(f"WRONG: {text}")
        self.wrongs.append(text)


async def trace_bodies(folder: Path, *, runs: int = 10_000) -> Report:
    with make_platform(folder / "home", LOG_LEVEL="WARNING") as platform:
        return bodies(platform, runs=runs)


def bodies(platform: Platform, *, runs: int, megabytes: int = 20, odd_every: int = 1) -> Report:
    """Send all bodies. With `odd_every`, only each `odd_every`-th of the odd values is sent."""
    report = Report("trace-bodies")
    with platform.client() as http:
        asker = Asker(platform, http)
        broken_bodies(asker)
        a_wrong_run_among_good_ones(asker)
        progress(f"broken bodies: {len(asker.wrongs)} wrong")
        odd_values(asker, odd_every)
        progress(f"odd values: {len(asker.wrongs)} wrong")
        reads_of_what_was_odd(asker, projects_max=5 + 95 // odd_every)
        before = _memory_mb(platform)
        report.tell(**a_large_run(asker, megabytes), **a_large_trace(asker, runs))
        growth = _memory_mb(platform) - before
        report.check(growth < RSS_GROWTH_MB_MAX, f"platform and store grew by {growth:.0f} MB")
        report.tell(memory_before_mb=before, growth_mb=growth)
        report.tell(answers=", ".join(f"{status}: {count}" for status, count in sorted(asker.statuses.items())))
        report.add(asker.wrongs)
    return report


def _memory_mb(platform: Platform) -> float:
    return rss_mb(platform.pid) + rss_mb(platform.engines()["clickhouse"])


def _cpu_s(platform: Platform) -> float:
    pids = (platform.pid, platform.engines()["clickhouse"])
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


# --- broken -----------------------------------------------------------------------------------------------------------


def broken_bodies(asker: Asker) -> None:
    """Send broken bodies: each is refused as a whole, and nothing of it is stored."""
    run = asker.run(inputs={"text": "x" * 100})
    good = encode_parts([(f"post.{run['id']}", run)])
    sized = good.replace(b"Content-Length: ", b"Content-Length: 9")
    for what, content in {
        "empty": b"",
        "cut in a part": good[:-100],
        "cut before the last boundary": good[: good.rindex(b"--" + BOUNDARY.encode())],
        "cut in the headers": good[:60],
        "longer than it says": good.replace(b"Content-Length: ", b"Content-Length: 1 "),
        "shorter than it says": sized,
        "a length of letters": good.replace(b"Content-Length: ", b"Content-Length: x"),
        "a length of 12 digits": good.replace(b"Content-Length: ", b"Content-Length: 999999999"),
        "a negative length": good.replace(b"Content-Length: ", b"Content-Length: -"),
        "another boundary": good.replace(BOUNDARY.encode(), b"other"),
        "no name": good.replace(b" name=", b" nam="),
        "endless headers": good.replace(b"Content-Type", b"X: " + b"x" * 20_000 + b"\r\nContent-Type"),
        "text before the first part": b"hello" + good,
        "an unknown part": good + b"",
        "noise": bytes(range(256)) * 100,
    }.items():
        if what != "an unknown part":
            asker.expect(422, f"multipart: {what}", "POST", "/runs/multipart", content=content, headers=MULTIPART)
    asker.expect(422, "no boundary", "POST", "/runs/multipart", content=good)
    unknown = encode_parts([(f"post.{run['id']}", run), ("hello.there", {})])
    asker.expect(422, "an unknown part", "POST", "/runs/multipart", content=unknown, headers=MULTIPART)
    for encoding, packed in (("gzip", gzip.compress(good)), ("zstd", zstandard.compress(good)), ("br", good)):
        headers = {**MULTIPART, "Content-Encoding": encoding}
        asker.expect(422, f"cut {encoding}", "POST", "/runs/multipart", content=packed[:-10], headers=headers)
        asker.expect(422, f"no {encoding}", "POST", "/runs/multipart", content=b"\1" + packed, headers=headers)
    bomb = zstandard.compress(b"\0" * 300 * MB)
    headers = {**MULTIPART, "Content-Encoding": "zstd"}
    asker.expect({413, 422}, "a bomb", "POST", "/runs/multipart", content=bomb, headers=headers)
    for content in (b"", b"[]", b"null", b'{"post": {}}', b'{"post": [1]}', b'{"patch": "x"}', b"{", b"\xff\xfe"):
        asker.expect(422, f"batch {content!r}", "POST", "/runs/batch", content=content) if content != b"" else None
        asker.expect(422, f"run {content!r}", "POST", "/runs", content=content)
    asker.check(asker.stored(run) is None, "something of a broken body was kept")


def a_wrong_run_among_good_ones(asker: Asker) -> None:
    """Send one wrong run among good ones: it is reported once with 422, and the others are stored."""
    for send in ("multipart", "batch"):
        runs = [asker.run() for _ in range(10)]
        runs[4]["run_type"] = "no such type"
        if send == "multipart":
            content = encode_parts([(f"post.{run['id']}", run) for run in runs])
            answer = asker.ask(send, "POST", "/runs/multipart", content=content, headers=MULTIPART)
        else:
            answer = asker.ask(send, "POST", "/runs/batch", json={"post": runs})
        asker.check(answer is not None and answer.status_code == 422, f"a wrong run type by {send} is not a 422")
        asker.check(answer is not None and runs[4]["id"] in answer.text, f"{send} does not name the wrong run")
        there = [asker.stored(run) is not None for run in runs]
        asker.check(there == [number != 4 for number in range(10)], f"of ten runs by {send} there are {there}")


# --- odd --------------------------------------------------------------------------------------------------------------

_TIMES = {
    "year 1": b'"0001-01-01T00:00:00Z"',
    "year 9999": b'"9999-12-31T23:59:59.999999Z"',
    "before 1970": b'"1969-12-31T23:59:59Z"',
    "a far zone": b'"0001-01-01T00:00:00+23:59"',
    "milliseconds": b"1e18",
    "no such day": b'"2026-02-30"',
    "true": b"true",
}
_ODD = {**ODD, **_TIMES, "a list": b"[]", "an object": b"{}", "empty": b'""', "a text": b'"x"'}
_RUN_FIELDS = (
    *("id", "name", "run_type", "start_time", "end_time", "trace_id", "parent_run_id", "dotted_order", "session_id"),
    *("session_name", "inputs", "outputs", "events", "extra", "serialized", "error", "tags", "reference_example_id"),
    *("status", "address"),
)
# Values within payloads; `@` is the value.
_INSIDE = {
    "inputs": b'{"messages": [{"role": "user", "content": @}], "k": @}',
    "outputs": b'{"usage_metadata": {"input_tokens": @, "total_cost": @}, "k": @}',
    "extra": b'{"metadata": {"session_id": @, "ls_model_name": @, "k": @}, "invocation_params": {"model": @}}',
    "events": b'[{"name": "new_token", "time": @}, @]',
    "tags": b"[@, @]",
    "dotted_order": b"@",
}
_ELSEWHERE: dict[str, tuple[str, str, bytes]] = {
    "feedback": ("POST", "/api/v1/feedback", b'{"run_id": "{run}", "key": "k", "score": @}'),
    "feedback text": ("POST", "/api/v1/feedback", b'{"run_id": "{run}", "key": @, "value": @, "comment": @}'),
    "feedback more": (
        "POST",
        "/api/v1/feedback",
        b'{"run_id": "{run}", "key": "k", "correction": @, "extra": @, "feedback_source": {"metadata": @}}',
    ),
    "feedback time": ("POST", "/api/v1/feedback", b'{"run_id": "{run}", "key": "k", "created_at": @}'),
    "project": ("POST", "/api/v1/sessions", b'{"name": @, "description": @}'),
    "project more": ("POST", "/api/v1/sessions", b'{"name": "{new}", "extra": @, "start_time": @}'),
    "query times": ("POST", "/api/v1/runs/query", b'{"session": ["{project}"], "start_time": @, "end_time": @}'),
    "query start": ("POST", "/api/v1/runs/query", b'{"session": ["{project}"], "start_time": @, "order": "asc"}'),
    "query": ("POST", "/api/v1/runs/query", b'{"session": ["{project}"], "query": @}'),
    "filter": ("POST", "/api/v1/runs/query", b'{"session": ["{project}"], "filter": @}'),
    "cursor": ("POST", "/api/v1/runs/query", b'{"session": ["{project}"], "cursor": @}'),
    "query ids": ("POST", "/api/v1/runs/query", b'{"id": [@], "trace": @}'),
    "stats": ("POST", "/api/v1/runs/stats", b'{"session": ["{project}"], "start_time": @, "filter": @}'),
    "groups": (
        "POST",
        "/api/v1/runs/stats",
        b'{"session": ["{project}"], "group_by": {"attribute": "metadata", "path": @}}',
    ),
    "v2 query": ("POST", "/api/v2/runs/query", b'{"project_ids": ["{project}"], "min_start_time": @}'),
    "v2 filter": ("POST", "/api/v2/runs/query", b'{"project_ids": ["{project}"], "filter": @, "cursor": @}'),
    "threads": ("POST", "/api/v2/threads/query", b'{"project_id": "{project}", "filter": @}'),
    "delete": ("POST", "/api/v1/runs/delete", b'{"session_id": "{project}", "trace_ids": [@]}'),
}


def odd_values(asker: Asker, every: int) -> None:
    """Send every odd value at every place: accepted or refused, never a 5xx. Accepted values can be read."""
    known = asker.run()
    asker.expect(202, "a run", "POST", "/runs", json=known)
    project = (asker.stored(known) or {})["session_id"]
    for (odd, value), name in islice(product(_ODD.items(), _RUN_FIELDS), 0, None, every):
        _send_odd(asker, f"{odd} as {name}", name, value)
    for (odd, value), (name, template) in islice(product(_ODD.items(), _INSIDE.items()), 0, None, every):
        if len(value) < 1000:  # sending the same large value many times shows nothing more
            _send_odd(asker, f"{odd} in {name}", name, template.replace(b"@", value))
    for (odd, value), (what, (method, path, template)) in islice(
        product(_ODD.items(), _ELSEWHERE.items()), 0, None, every
    ):
        content = template.replace(b"{run}", known["id"].encode()).replace(b"{project}", project.encode())
        content = content.replace(b"{new}", uuid4().hex.encode()).replace(b"@", value)
        asker.ask(f"{odd}: {what}", method, path, content=content, headers={"Content-Type": "application/json"})
    for stamp in ("00010101T000000000000Z", "99991231T235959999999Z", "20260230T000000000000Z"):
        run = asker.run()
        run |= {"dotted_order": stamp + run["id"], "start_time": None}
        asker.expect({400, 422}, f"an order of {stamp}", "POST", "/runs", json=run)
    for path in (
        "/api/v1/runs/%00",
        "/api/v1/runs/%ff%fe",
        "/api/v1/sessions/%ED%A0%80",
        "/api/v1/feedback/..%2f..%2f",
    ):
        asker.ask(path, "GET", path)
    for value in ("\0", "%", "'", '"', "\\", "0001-01-01", "9999-12-31T23:59:59Z", "NaN", "-1", "9" * 400, "\ud7ff"):
        for path in ("sessions", "feedback", "runs/rules", "feedback-configs"):
            for name in (
                "name",
                "name_contains",
                "id",
                "run",
                "limit",
                "offset",
                "metadata",
                "filter",
                "key",
                "sort_by",
            ):
                asker.ask(f"{path}?{name}={value!r}", "GET", f"/api/v1/{path}", params={name: value})


def _send_odd(asker: Asker, what: str, name: str, value: bytes) -> None:
    """Send the run as JSON, as a part, and as an update."""
    run = asker.run(inputs={}, extra={"metadata": {}})
    run_id = run["id"]
    run.pop(name, None)
    text = json.dumps(run).encode()[:-1] + b', "' + name.encode() + b'": ' + value + b"}"
    main = {key: run[key] for key in run if key not in ("inputs", "extra")}
    answers = [
        asker.ask(f"{what}, single", "POST", "/runs", content=text),
        asker.ask(f"{what}, batch", "POST", "/runs/batch", content=b'{"post": [' + text + b"]}"),
    ]
    if name in ("inputs", "outputs", "events", "extra", "error", "serialized"):
        content = encode_parts([(f"post.{run_id}", main), (f"post.{run_id}.{name}", value)])
    else:
        content = encode_parts([(f"post.{run_id}", text)])
    answers.append(asker.ask(f"{what}, part", "POST", "/runs/multipart", content=content, headers=MULTIPART))
    update = b'{"session_name": "' + asker.project.encode() + b'", "' + name.encode() + b'": ' + value + b"}"
    answers.append(asker.ask(f"{what}, update", "PATCH", f"/runs/{run_id}", content=update))
    if any(answer is not None and answer.status_code == 202 for answer in answers):
        asker.stored({"id": run_id})


def reads_of_what_was_odd(asker: Asker, projects_max: int) -> None:
    """Read the newest projects by every route that reads them."""
    with_all = [*_shown_fields()]
    for project in asker.http.get("/api/v1/sessions", params={"limit": projects_max}).json():
        for body in _queries(project["id"], with_all):
            path = body.pop("path")
            asker.expect(200, f"{path} of {project['name'][:50]!r}", "POST", path, json=body)
        asker.expect(200, "a project", "GET", f"/api/v1/sessions/{project['id']}", params={"include_stats": True})
        asker.expect(200, "feedback", "GET", "/api/v1/feedback", params={"session": project["id"]})


def _shown_fields() -> Iterator[str]:
    from typing import get_args  # imported here, since nothing else needs it

    from moorage.traces.records.run_fields import RunSelect

    yield from get_args(RunSelect)


def _queries(project_id: str, fields: list[str]) -> Iterator[dict[str, Any]]:
    v1, v2 = {"session": [project_id]}, {"project_ids": [project_id], "min_start_time": "1970-01-01T00:00:00Z"}
    yield {"path": "/api/v1/runs/query", **v1, "select": fields}
    yield {"path": "/api/v1/runs/query", **v1, "order": "asc", "filter": "and(exists(name), gt(latency, 0))"}
    yield {"path": "/api/v1/runs/stats", **v1}
    for attribute in ("name", "run_type", "tag"):
        yield {"path": "/api/v1/runs/stats", **v1, "group_by": {"attribute": attribute}}
    yield {"path": "/api/v1/runs/stats", **v1, "group_by": {"attribute": "metadata", "path": "k"}}
    yield {"path": "/api/v1/runs/group", "session_id": project_id, "group_by": "conversation"}
    yield {"path": "/api/v2/runs/query", **v2, "selects": ["ID", "NAME", "INPUTS", "OUTPUTS"]}
    yield {"path": "/api/v2/threads/query", "project_id": project_id}


# --- big --------------------------------------------------------------------------------------------------------------


def a_large_run(asker: Asker, megabytes: int) -> dict[str, object]:
    """Send a run with this many megabytes of input and of output, by POST and PATCH, and read both back whole."""
    run, text = asker.run(), "x" * (megabytes * MB)
    began = time.monotonic()
    parts = [(f"post.{run['id']}", run), (f"post.{run['id']}.inputs", {"text": text})]
    asker.deliver("a large run", "POST", "/runs/multipart", content=encode_parts(parts), headers=MULTIPART)
    update = update_of(run, outputs={"text": text}, end_time=run["start_time"])
    asker.deliver("a large update", "PATCH", f"/runs/{run['id']}", json=update)
    found = asker.stored(run) or {}
    asker.check(found.get("inputs") == {"text": text}, "the large inputs are not whole")
    asker.check(found.get("outputs") == {"text": text}, "the large outputs are not whole")
    return {"megabytes": 2 * megabytes, "large_run_s": time.monotonic() - began}


def a_large_trace(asker: Asker, count: int) -> dict[str, object]:
    """Store a large trace, and read it with the official SDK: the root with its children, all of its runs, its
    statistics.
    """
    root = asker.run(run_type="chain")
    parents, runs = [root], [root]
    while len(runs) < count:
        parent = parents[len(runs) % len(parents)]
        usage = {"usage_metadata": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}}
        runs.append(asker.run(parent, end_time=root["start_time"], outputs=usage))
        if len(parents) < 100:
            parents.append(runs[-1])
    cpu_s, began = _cpu_s(asker.platform), time.monotonic()
    for at in range(0, count, 1000):
        content = encode_parts([(f"post.{run['id']}", run) for run in runs[at : at + 1000]])
        asker.deliver("a part of a trace", "POST", "/runs/multipart", content=content, headers=MULTIPART)
    stored_s, began = time.monotonic() - began, time.monotonic()
    progress(f"trace of {count} runs stored after {stored_s:.1f} s")
    client = Client(f"{asker.platform.url}/api/v1", api_key=asker.platform.key, auto_batch_tracing=False)
    _check_read_by_sdk(asker, client, root, count)
    read_s = time.monotonic() - began
    spent_s = _cpu_s(asker.platform) - cpu_s
    asker.check(spent_s < CPU_S_MAX, f"a trace of {count} runs took {spent_s:.0f} s of CPU")
    figures = {"runs_of_one_trace": count, "stored_s": stored_s, "read_by_the_SDK_s": read_s}
    return {**figures, "cpu_of_platform_and_store_s": spent_s}


def _check_read_by_sdk(asker: Asker, client: Client, root: dict[str, Any], count: int) -> None:
    found = client.read_run(root["id"], load_child_runs=True)
    below = list(found.child_runs or ())
    seen = 0
    while below:
        seen += 1
        below += below.pop().child_runs or ()
    asker.check(seen == count - 1, f"the SDK finds {seen} runs below the root, not {count - 1}")
    asker.check(len(found.child_run_ids or ()) == count - 1, f"child_run_ids are {len(found.child_run_ids or ())}")
    asker.check(found.total_tokens == 3 * (count - 1), f"the root has {found.total_tokens} tokens")
    listed = sum(1 for _ in client.list_runs(trace_id=root["id"]))
    asker.check(listed == count, f"the SDK lists {listed} runs of the trace")
    stats = client.get_run_stats(project_ids=[str(found.session_id)], trace=root["id"])
    asker.check(stats["run_count"] == count, f"the statistics count {stats['run_count']} runs")
    asker.check(stats["total_tokens"] == 3 * (count - 1), f"the statistics sum {stats['total_tokens']} tokens")
