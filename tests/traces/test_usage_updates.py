"""Usage that several updates report: every reader of a run sees the complete usage of the last update, and nothing
else.
"""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
import pyarrow.parquet as pq
import pytest

from moorage.exports.records.exports import Compression, FormatVersion
from moorage.kernel.buckets.bucket import directory_bucket
from moorage.traces.exported_runs import ExportedRuns, ExportSelection
from moorage.traces.reading import Reading
from moorage.traces.records.words import USAGE_FIELDS
from moorage.traces.routes import runs, runs_v2
from moorage.traces.statistics import Statistics
from moorage.traces.store.feedback import FeedbackStore
from moorage.traces.store.project_stats import ProjectStatsStore
from tests.traces.ingest_rooms import NOW, IngestRoom, make_run, update_of

pytest_plugins = ("tests.accounts.fixtures", "tests.traces.fixtures")

PRICED = {"input_tokens": 10, "output_tokens": 2, "input_cost": 0.5, "output_cost": 0.25}
# The fields of a run's POST and PATCHes in order, and the values that are then read; a field that is not named is
# empty.
CASES: dict[str, tuple[list[dict[str, Any] | None], dict[str, float]]] = {
    "the prompt with the POST, the completion with the PATCH": (
        [{"input_tokens": 10}, {"output_tokens": 5}],
        {"completion_tokens": 5, "total_tokens": 5},
    ),
    "two PATCHes": (
        [None, PRICED | {"input_token_details": {"cache_read": 4}}, {"output_tokens": 7}],
        {"completion_tokens": 7, "total_tokens": 7},
    ),
    "costs after tokens": ([{"input_tokens": 3}, PRICED, {"total_cost": 3}], {"total_cost": 3}),
    "tokens after costs": (
        [None, {"total_cost": 3, "input_cost": 1}, PRICED, {"total_tokens": 9}],
        {"total_tokens": 9},
    ),
    "a PATCH that tells nothing of it": (
        [None, {"input_tokens": 0, "output_tokens": 2}, None],
        {"prompt_tokens": 0, "completion_tokens": 2, "total_tokens": 2},
    ),
}


class Readers:
    """All readers of tokens and costs of a run, each as `{field: number}` without unknown values."""

    def __init__(self, http, clickhouse, workspace_id: UUID) -> None:
        self._http, self._clickhouse, self._workspace_id = http, clickhouse, workspace_id

    async def send(self, requests: list[dict[str, Any]]) -> None:
        for request in requests:
            answer = await self._http.post("/api/v1/runs/batch", content=orjson.dumps(request))
            assert answer.status_code == 202, answer.text

    async def _ask(self, path: str, body: dict[str, Any] | None = None, **query: Any) -> Any:
        method, content = ("GET", None) if body is None else ("POST", orjson.dumps(body))
        answer = await self._http.request(method, path, content=content, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def read(self, run: dict[str, Any], project_id: str) -> dict[str, dict[str, float]]:
        """Return the values by reader. Readers of version 1, and statistics, show 0 tokens for unknown values: these
        zeros are left out.
        """
        run_id, selects = run["id"], [name.upper() for name in USAGE_FIELDS]
        [of_page] = (await self._ask("/api/v1/runs/query", {"id": [run_id]}))["runs"]
        of_trace = await self._ask("/api/v1/runs/query", {"trace": run["trace_id"], "session": [project_id]})
        with_zeros = {
            "page": of_page,
            "page of the trace": next(each for each in of_trace["runs"] if each["id"] == run_id),
            "by id": await self._ask(f"/api/v1/runs/{run_id}"),
            "statistics": await self._ask(
                "/api/v1/runs/stats", {"session": [project_id], "is_root": not run["parent_run_id"]}
            ),
            "project": await self._of_project(UUID(project_id)),
        }
        exact = {
            "v2": await self._ask(f"/api/v2/runs/{run_id}", project_id=project_id, selects=selects),
            **await self._exported(run_id, UUID(project_id)),
        }
        seen = {reader: without_zeros(_numbers(said)) for reader, said in with_zeros.items()}
        return seen | {reader: _numbers(said) for reader, said in exact.items()}

    async def known(self, run: dict[str, Any], project_id: str) -> set[str]:
        """Return the fields by which filters find the run, as filters of pages."""
        found = set()
        for name in USAGE_FIELDS:
            search = {"session": [project_id], "filter": f'and(eq(id, "{run["id"]}"), gte({name}, 0))'}
            every = {"session": [project_id], "filter": f'and(eq(id, "{run["id"]}"), neq({name}, null))'}
            answers = [(await self._ask("/api/v1/runs/query", each))["runs"] for each in (search, every)]
            assert len(answers[0]) == len(answers[1])
            found |= {name} if answers[0] else set()
        return found

    async def _of_project(self, project_id: UUID) -> Any:
        store = ProjectStatsStore(self._clickhouse)
        return (await store.stats(self._workspace_id, [project_id], NOW - timedelta(days=1), None))[project_id]

    async def _exported(self, run_id: str, project_id: UUID) -> dict[str, Any]:
        pages = ExportedRuns(self._clickhouse)
        since, until = NOW - timedelta(days=1), NOW + timedelta(days=1)
        selection = ExportSelection(self._workspace_id, project_id, since, until, datetime.now(UTC))
        fields, found = ("id", *USAGE_FIELDS), {}
        for version in FormatVersion:
            page = await pages.next_page(selection, None, fields, 10**9)
            file = io.BytesIO()
            await pages.write_parquet(selection, page, fields, file, version=version, compression=Compression.NONE)
            rows = pq.read_table(file).to_pylist()
            found[f"export {version}"] = next(row for row in rows if row["id"] == run_id)
        return found


def _numbers(said: dict[str, Any]) -> dict[str, float]:
    found = {name: said.get(name, said.get(name.upper())) for name in USAGE_FIELDS}
    return {name: float(value) for name, value in found.items() if value is not None}


def without_zeros(numbers: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if value}


@pytest.fixture
async def readers(house, platform_postgres, clickhouse, tmp_path):
    room, feedback = IngestRoom(platform_postgres, clickhouse, directory_bucket(tmp_path)), FeedbackStore(clickhouse)
    room.serve(house)
    vars(house.app.state.traces).update(
        reading=Reading(clickhouse, feedback), statistics=Statistics(clickhouse, feedback)
    )
    house.app.include_router(runs.router, prefix="/api/v1")
    house.app.include_router(runs_v2.router, prefix="/api/v2")
    workspace = await house.make_workspace()
    async with house.client(workspace["api_key"]) as http:
        yield Readers(http, clickhouse, workspace["id"])
        await room.ingest.stop()


def _writes(case: str, run: dict[str, Any]) -> list[dict[str, Any]]:
    first, *rest = [{} if said is None else {"outputs": {"usage_metadata": said}} for said in CASES[case][0]]
    return [{"post": [{**run, **first}]}, *({"patch": [update_of(run, **said)]} for said in rest)]


def _together(writes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: [run for write in writes for run in write.get(key, ())] for key in ("post", "patch")}]


@pytest.mark.parametrize("apart", [False, True], ids=["in one insert", "in an insert each"])
async def test_all_readers_tell_what_the_last_update_said_of_usage(readers, clickhouse, apart):
    made = {}
    for case in CASES:
        root = make_run(session_name=f"{case} {apart}")
        run = make_run(root, session_name=f"{case} {apart}", run_type="llm")
        writes = _writes(case, run)
        await readers.send([{"post": [root]}, *(writes if apart else _together(writes))])
        made[case] = root, run
    for merged in (False, True):
        if merged:
            for table in ("trace_run_rows", "trace_keys"):
                await clickhouse.command(f"OPTIMIZE TABLE {table} FINAL")
        for case, (root, run) in made.items():
            expected, project_id = CASES[case][1], await _project_of(readers, run)
            for each in (run, root):
                for reader, numbers in (await readers.read(each, project_id)).items():
                    exact = reader == "v2" or reader.startswith("export")
                    assert numbers == (expected if exact else without_zeros(expected)), (case, reader)
            assert await readers.known(run, project_id) == expected.keys(), case


async def _project_of(readers: Readers, run: dict[str, Any]) -> str:
    return (await readers._ask(f"/api/v1/runs/{run['id']}"))["session_id"]
