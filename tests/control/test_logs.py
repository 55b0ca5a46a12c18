"""Lines that deployments print, read over HTTP from a real trace store."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from moorage.control.records.logs import LogKind, LogLevel, LogLine
from moorage.control.store.logs import LogStore
from tests.control.houses import created, from_git, make_control_house

pytest_plugins = ["tests.accounts.fixtures", "tests.traces.fixtures"]

BEGIN = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=5)
LEVELS = [LogLevel.INFO, LogLevel.DEBUG, LogLevel.WARNING, LogLevel.ERROR, LogLevel.CRITICAL]


@pytest.fixture
async def control(platform_postgres, clickhouse, tmp_path):
    return await make_control_house(platform_postgres, tmp_path, clickhouse)


@pytest.fixture
async def client(control):
    async with control.client() as client:
        yield client


@pytest.fixture
async def made(client):
    return await created(client, from_git())


def _lines(control, made, count, kind=LogKind.BUILD):
    """Make lines, five for each millisecond, so that only their position distinguishes some of them."""
    return [
        LogLine(
            UUID(control.workspace_id),
            UUID(made["id"]),
            UUID(made["latest_revision_id"]),
            kind,
            BEGIN + timedelta(milliseconds=number // 5),
            number * 100,
            LEVELS[number % 5],
            f"Line {number}: Größe",
            "run-1" if number % 2 else "",
        )
        for number in range(count)
    ]


async def _post(client, path, **wanted):
    answer = await client.post(path, json=wanted)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _numbers(lines):
    return [int(line["message"].split()[1].rstrip(":")) for line in lines]


async def test_lines_are_read_once_each_page_by_page_forward_and_back(client, control, made, clickhouse):
    store, lines = LogStore(clickhouse), _lines(control, made, 23)
    await store.insert(lines)
    await store.insert(lines[5:15])  # as after a crash of the process that reads the files
    path = f"/v1/projects/{made['id']}/revisions/{made['latest_revision_id']}/build_logs"
    for order, numbers in (("asc", list(range(23))), ("desc", list(range(22, -1, -1)))):
        seen, offset = [], {}
        while (page := await _post(client, path, order=order, limit=4, **offset))["logs"]:
            seen += page["logs"]
            if page["next_offset"] is None:
                break
            offset = {"offset": page["next_offset"]}
        assert _numbers(seen) == numbers
        assert len({line["id"] for line in seen}) == 23
    whole = await _post(client, path)
    assert whole["next_offset"], "more may be printed"
    await store.insert(_lines(control, made, 25)[23:])
    after = await _post(client, path, offset=whole["next_offset"])
    assert _numbers(after["logs"]) == [23, 24]
    assert (await _post(client, path, offset=after["next_offset"])) == {"logs": [], "next_offset": None}
    first = whole["logs"][0]
    assert first["timestamp"] == int(BEGIN.timestamp() * 1000)
    assert first["level"] == "INFO"
    assert first["revision_id"] == made["latest_revision_id"]
    assert first["type"] == "build"


async def test_lines_are_sought_by_level_text_time_and_run(client, control, made, clickhouse):
    await LogStore(clickhouse).insert(_lines(control, made, 20, LogKind.DEPLOY))
    path = f"/api-host/v1/projects/{made['id']}/deploy_logs"

    async def numbers(**wanted):
        return _numbers((await _post(client, path, **wanted))["logs"])

    assert await numbers(level="ERROR") == [3, 4, 8, 9, 13, 14, 18, 19]
    assert await numbers(level="critical", limit=2) == [4, 9]
    assert await numbers(query="line 1:") == [1]
    assert await numbers(query="GRÖSSE") == []
    assert await numbers(query="größe", run_id="run-1", limit=3) == [1, 3, 5]
    start = (BEGIN + timedelta(milliseconds=2)).isoformat()
    assert await numbers(start_time=start) == list(range(10, 20)), "the first moment is in it: clients follow so"
    assert await numbers(end_time=start, order="desc", limit=2) == [14, 13]
    assert await numbers(start_time="0001-01-01T00:00:00", end_time="9999-12-31T23:59:59Z", limit=1) == [0]
    other = f"/v1/projects/{made['id']}/revisions/{made['latest_revision_id']}/build_logs"
    assert (await _post(client, other))["logs"] == []


async def test_the_second_version_gives_the_same_lines(client, control, made, clickhouse):
    await LogStore(clickhouse).insert(_lines(control, made, 6, LogKind.DEPLOY))
    path = f"/v2/deployments/{made['id']}/revisions/{made['latest_revision_id']}/logs"
    page = (await client.get(path, params={"type": "deploy", "order": "desc", "limit": 2})).json()
    assert _numbers(page["logs"]) == [5, 4]
    query = {"deployment_id": made["id"], "page_size": 4, "level": "WARNING"}
    entries = (await client.get("/v2/deployment-logs", params=query)).json()
    assert _numbers(entries["items"]) == [2, 3, 4]
    rest = (await client.get("/v2/deployment-logs", params=query | {"cursor": entries["next_cursor"]})).json()
    assert rest == {"items": [], "next_cursor": None}
    build = (await client.get("/v2/deployment-logs", params=query | {"log_type": "BUILD"})).json()
    assert build["items"] == []
    for bad in (
        {"type": "all"},
        {},
        {"type": "build", "limit": 1001},
        {"type": "build", "offset": "!"},
        {"type": "build", "offset": "AAAA"},
        {"type": "build", "level": "LOUD"},
        {"type": "build", "start_time": "yesterday"},
    ):
        assert (await client.get(path, params=bad)).status_code == 422, bad


async def test_lines_of_another_workspace_are_not_found_and_go_with_their_deployment(client, control, made, clickhouse):
    store = LogStore(clickhouse)
    await store.insert(_lines(control, made, 3))
    path = f"/v1/projects/{made['id']}/revisions/{made['latest_revision_id']}/build_logs"
    stranger = await control.house.make_workspace()
    async with control.client(stranger["api_key"]) as outside:
        assert (await outside.post(path, json={})).status_code == 404
    await store.remove(UUID(control.workspace_id), UUID(made["id"]))
    assert (await _post(client, path))["logs"] == []
