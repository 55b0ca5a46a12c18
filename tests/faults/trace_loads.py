"""A load of trace runs over HTTP, in every order and form in which clients send them, with a record of what was
acknowledged.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import zstandard

from tests.faults.houses import RANDOM
from tests.faults.trace_model import Operation, Run, judge
from tests.platform.leaks import leaks_in, secrets_of
from tests.platform.serving import Platform
from tests.traces.ingest_rooms import MULTIPART, encode_parts

ANSWER_S_MAX = 60
PROJECTS = ("faults-a", "faults-b")
_LARGE = ("inputs", "outputs", "events", "extra", "error", "serialized")
_DAY = timedelta(days=1, hours=3)
_SHOWN = (
    *("id", "name", "run_type", "start_time", "end_time", "status", "error", "extra", "events", "inputs", "outputs"),
    *("s3_urls", "serialized", "parent_run_id", "parent_run_ids", "child_run_ids", "reference_example_id", "tags"),
    *("thread_id", "first_token_time", "total_tokens", "prompt_tokens", "total_cost", "trace_id", "dotted_order"),
)
Request = list[Operation]


# --- traces, and the requests that tell of them -----------------------------------------------------------------------


def make_trace(since: timedelta = timedelta()) -> list[Run]:
    """Make a root and up to four runs below it."""
    trace: list[Run] = []
    began = datetime.now(UTC) - since
    project = RANDOM.choice(PROJECTS)
    for number in range(RANDOM.randint(1, 5)):
        parent = RANDOM.choice(trace) if trace else None
        run_id, start = str(uuid4()), began + timedelta(milliseconds=number)
        segment = f"{start:%Y%m%dT%H%M%S%fZ}{run_id}"
        order = f"{parent.dotted_order}.{segment}" if parent else segment
        trace.append(Run(run_id, trace, parent, start.isoformat(), order, project))
    return trace


def post(run: Run) -> Operation:
    fields = {
        "name": RANDOM.choice(("agent", "model", "tool - ünï")),
        "run_type": RANDOM.choice(("chain", "llm", "tool")),
        "inputs": {"messages": [{"role": "user", "content": "x" * RANDOM.randrange(2000)}], "of": run.id},
        "extra": {"metadata": {"session_id": run.trace[0].id, "n": RANDOM.random()}, "runtime": {"sdk": "test"}},
        "serialized": {"lc": 1},
        "tags": RANDOM.sample(["prod", "beta", "it's"], 2),
    }
    return Operation("post", run, fields, attachment=RANDOM.choice(("", "", "", "", "page")))


def patch(run: Run, **more: Any) -> Operation:
    end = datetime.fromisoformat(run.start_time) + timedelta(seconds=RANDOM.random())
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "total_cost": 0.000123}
    fields = {
        "end_time": end.isoformat(),
        "outputs": {"answer": "y" * RANDOM.randrange(1000), **RANDOM.choice(({}, {"usage_metadata": usage}))},
        "events": [{"name": "new_token", "time": run.start_time}, {"name": "end", "time": end.isoformat()}],
        **RANDOM.choice(({}, {"error": f"it broke: {run.id}"})),
        **more,
    }
    return Operation("patch", run, fields, attachment=RANDOM.choice(("", "", "", "", "", "", "answer")))


def _second_patch(run: Run) -> Operation:
    extra = {"metadata": {"session_id": "another", "late": True}}
    return Operation("patch", run, {"tags": ["changed"], "extra": extra, "name": "renamed"})


def _by_id_alone(run: Run) -> Operation:
    """Return an update that waits until its run is known, and that then ranks behind everything
    later said of the run.
    """
    fields = {"reference_example_id": str(uuid4()), "outputs": {"answer": "early"}, "tags": ["early"]}
    return Operation("patch", run, fields, by_id_alone=True)


def plan(form: str) -> tuple[list[Request], list[Request]]:
    """Return the requests for a trace in order, and the requests that follow when all others are done."""
    trace = make_trace(_DAY if form == "late" else timedelta())
    posts, patches = [post(run) for run in trace], [patch(run) for run in trace]
    match form:
        case "out of order":
            return [patches, posts], []
        case "together":
            return [[*posts, *patches]], []
        case "duplicates":
            return [posts, posts, patches, posts, patches], []
        case "patched twice":
            return [posts, patches, [_second_patch(run) for run in trace]], []
        case "by id alone":
            more = [_by_id_alone(run) for run in trace if RANDOM.random() < 0.5]
            return [[_by_id_alone(run) for run in trace], *([more] if more else []), posts, patches], []
        case "late":
            return [posts], [patches]
        case "orphans":  # one run only gets updates, and another not even a place in its trace
            nobody = make_trace()[0]
            return [[posts[0], *patches], [_by_id_alone(nobody)]], []
        case "one by one":
            return [[each] for each in (*reversed(posts), *patches)], []
    return [posts, patches], []


FORMS = (
    *("plain", "out of order", "together", "duplicates", "patched twice", "by id alone", "late", "orphans"),
    "one by one",
)


# --- on the wire --------------------------------------------------------------------------------------------------------


def _body(operation: Operation) -> dict[str, Any]:
    run = operation.run
    body: dict[str, Any] = {"id": run.id, **operation.fields}
    if operation.by_id_alone:
        return body
    place = {
        "trace_id": run.trace[0].id,
        "parent_run_id": run.parent.id if run.parent else None,
        "dotted_order": run.dotted_order,
        "session_name": run.session_name,
    }
    if operation.kind == "post":
        place["start_time"] = run.start_time
    return body | place


def _multipart(request: Request) -> bytes:
    parts: list[tuple[str, Any]] = []
    for operation in request:
        body, name = _body(operation), f"{operation.kind}.{operation.run.id}"
        parts += [(f"{name}.{key}", body.pop(key)) for key in _LARGE if key in body and RANDOM.random() < 0.8]
        parts.append((name, body))
        if operation.attachment:
            parts.append((f"attachment.{operation.run.id}.{operation.attachment}", b"attached"))
    RANDOM.shuffle(parts)
    return encode_parts(parts)


_PACKERS = {"": bytes, "gzip": gzip.compress, "zstd": zstandard.ZstdCompressor(write_content_size=False).compress}


async def _send(http: httpx.AsyncClient, request: Request) -> httpx.Response:
    """Send in one of the forms of the wire. Attachments and several updates of one run need separate parts."""
    if any(operation.attachment for operation in request) or RANDOM.random() < 0.6:
        encoding = RANDOM.choice(list(_PACKERS))
        headers = {**MULTIPART, **({"Content-Encoding": encoding} if encoding else {})}
        return await http.post("/runs/multipart", content=_PACKERS[encoding](_multipart(request)), headers=headers)
    if len(request) == 1 and request[0].kind == "patch":
        return await http.patch(f"/api/v1/runs/{request[0].run.id}", json=_body(request[0]))
    if len(request) == 1 and RANDOM.random() < 0.5:
        return await http.post("/runs", json=_body(request[0]))
    batch = {kind: [_body(each) for each in request if each.kind == kind] for kind in ("post", "patch")}
    return await http.post("/api/v1/runs/batch", json=batch)


# --- the load -------------------------------------------------------------------------------------------------------------


@dataclass
class TraceLoad:
    """Clients that send traces until they are stopped. Most retry until a request succeeds, like the official clients;
    some give up.
    """

    platform: Platform
    clients: int
    runs: dict[str, Run] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    _later: list[list[Request]] = field(default_factory=list)
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._secrets = secrets_of(self.platform)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the load. Late requests are sent at the end."""
        async with self.http() as http:
            senders = [asyncio.create_task(self._send_all(http)) for _ in range(self.clients)]
            try:
                yield
            finally:
                self._stopped.set()
                await asyncio.gather(*senders)
            for requests in self._later:
                await self._tell(http, requests, gives_up=False)

    def http(self) -> httpx.AsyncClient:
        headers = {"X-Api-Key": self.platform.key}
        return httpx.AsyncClient(base_url=self.platform.url, headers=headers, timeout=ANSWER_S_MAX)

    async def _send_all(self, http: httpx.AsyncClient) -> None:
        while not self._stopped.is_set():
            now, later = plan(RANDOM.choice(FORMS))
            await self._tell(http, now, gives_up=RANDOM.random() < 0.2)
            self._later.append(later)
            await asyncio.sleep(RANDOM.random() * 0.1)

    async def _tell(self, http: httpx.AsyncClient, requests: Sequence[Request], *, gives_up: bool) -> None:
        for request in requests:
            self.runs |= {operation.run.id: operation.run for operation in request}
            while not await self._is_taken(http, request):
                for operation in request:
                    operation.run.uncertain.append(operation)
                if gives_up:
                    return
                await asyncio.sleep(0.3)
            for operation in request:
                operation.run.acknowledged.append(operation)
                # The request was accepted in the end; earlier failures make no difference.
                operation.run.uncertain = [each for each in operation.run.uncertain if each is not operation]

    async def _is_taken(self, http: httpx.AsyncClient, request: Request) -> bool:
        started = time.monotonic()
        try:
            answer = await _send(http, request)
        except httpx.TimeoutException:
            self.wrongs.append(f"no answer in {ANSWER_S_MAX} s, at {datetime.now(UTC):%H:%M:%S}")
            return False
        except httpx.TransportError:
            self.answers["cut"] += 1
            return False
        finally:
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)
        self.answers[str(answer.status_code)] += 1
        if answer.status_code not in {202, 429, 503}:
            self.wrongs.append(f"{answer.request.url.path}: {answer.status_code} {answer.text[:200]}")
        if answer.status_code in {429, 503} and not answer.headers.get("retry-after", "").isdigit():
            self.wrongs.append(f"{answer.status_code} without Retry-After: {answer.text[:200]}")
        self.wrongs += leaks_in(answer, self._secrets)
        return answer.status_code == 202

    @property
    def told(self) -> str:
        """Return a short summary of the load."""
        return ", ".join(f"{answer}: {count}" for answer, count in sorted(self.answers.items()))

    @property
    def turned_away(self) -> int:
        return self.answers["429"] + self.answers["503"]

    def figures(self) -> dict[str, object]:
        runs = self.runs.values()
        return {
            "runs_acknowledged": sum(run.must_be_there for run in runs),
            "runs_of_unknown_fate": sum(run.may_be_there and not run.must_be_there for run in runs),
            "runs_of_which_only_an_update_by_id_came": sum(not run.may_be_there for run in runs),
            "answers": self.told,
            "slowest_answer_s": self.slowest_s,
        }

    async def until_taken(self, requests: int, bound_s: float) -> float:
        """Return how long it takes until this many more requests are accepted."""
        wanted, began = self.answers["202"] + requests, time.monotonic()
        while self.answers["202"] < wanted:
            assert time.monotonic() < began + bound_s, f"runs are not taken: {self.told}"
            await asyncio.sleep(0.1)
        return time.monotonic() - began

    # --- what is there ------------------------------------------------------------------------------------------------

    async def judge(self, bound_s: float) -> list[str]:
        """Check what a reader finds, after waiting for updates that wait for their run. Returns all faults."""
        give_up_at = time.monotonic() + bound_s
        while True:
            found = await self.found()
            wrongs = judge(self.runs.values(), found) or await self._unreachable(found)
            if not wrongs or time.monotonic() > give_up_at:
                return [*self.wrongs, *wrongs]
            await asyncio.sleep(1)

    async def found(self) -> list[dict[str, Any]]:
        """Return all runs of all projects, as readers page through them."""
        found: list[dict[str, Any]] = []
        async with self.http() as http:
            for project in PROJECTS:
                for session in (await http.get("/api/v1/sessions", params={"name": project})).json():
                    found += await self._page_through(http, {"session": [session["id"]]})
        return found

    async def _unreachable(self, listed: Sequence[dict[str, Any]]) -> list[str]:
        """Return runs that are in lists, but cannot be found by their ids or by the id of their trace."""
        ids = [run["id"] for run in listed]
        traces: dict[str, set[str]] = {}
        for run in listed:
            traces.setdefault(run["trace_id"], set()).add(run["id"])
        wrongs: list[str] = []
        async with self.http() as http:
            for at in range(0, len(ids), 100):
                found = {run["id"] for run in await self._page_through(http, {"id": ids[at : at + 100]}, ("id",))}
                wrongs += [f"run {run_id}: not found by its id" for run_id in ids[at : at + 100] if run_id not in found]
            for trace_id, members in traces.items():
                found = {run["id"] for run in await self._page_through(http, {"trace": trace_id}, ("id",))}
                wrongs += [f"run {run_id}: not found by its trace {trace_id}" for run_id in members - found]
        return wrongs

    async def _page_through(
        self, http: httpx.AsyncClient, search: dict[str, Any], shown: Sequence[str] = _SHOWN
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            body = {**search, "limit": 100, "cursor": cursor, "select": shown}
            answer = await http.post("/api/v1/runs/query", json=body)
            assert answer.status_code == 200, answer.text[:300]
            found += answer.json()["runs"]
            cursor = answer.json()["cursors"]["next"]
            if cursor is None:
                return found
