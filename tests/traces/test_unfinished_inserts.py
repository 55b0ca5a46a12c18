"""Inserts during which the trace store died: a run that lists show is found by its id, and counted by the runs above
it.
"""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import orjson
import pytest

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import NotFoundError
from moorage.traces.reading import Reading
from moorage.traces.records.runs import RunsFilter
from moorage.traces.sent_body import split_batch
from tests.traces.ingest_rooms import IngestRoom, make_run, make_sender, new_cost, update_of

pytest_plugins = "tests.traces.room_fixtures"

USAGE = {"usage_metadata": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}}


@pytest.fixture
async def sender(platform_postgres, clickhouse):
    async with make_sender(platform_postgres, clickhouse) as made:
        yield made


@pytest.fixture
async def cut_off(sender, platform_postgres, empty_clickhouse_url):
    """Write runs as an insert does that ends after the runs themselves: the views have seen nothing of them."""
    elsewhere = ClickHouse(empty_clickhouse_url)
    await elsewhere.migrate()
    await sender.room.clickhouse.command("SYSTEM STOP MERGES trace_run_rows")  # so that rows can be counted
    room = IngestRoom(platform_postgres, elsewhere, sender.room.bucket)

    async def write(post=(), patch=()):
        async def body():
            yield orjson.dumps({"post": post, "patch": patch})

        assert not await room.ingest.write_json(sender.caller, body(), split_batch, new_cost())
        database = await elsewhere.value("SELECT currentDatabase()")
        sql = "SELECT DISTINCT partition_id FROM system.parts WHERE active AND database = {d:String} AND table = 'trace_run_rows'"
        for (month,) in await elsewhere.rows(sql, {"d": database}):
            await sender.room.clickhouse.command(
                f"ALTER TABLE trace_run_rows ATTACH PARTITION ID '{month}' FROM {database}.trace_run_rows"
            )
            await elsewhere.command(f"ALTER TABLE trace_run_rows DROP PARTITION ID '{month}'")

    yield write
    await sender.room.clickhouse.command("SYSTEM START MERGES trace_run_rows")
    await elsewhere.close()


@pytest.fixture
def shown(sender, room):
    """Return a function that reads a run by its id, and returns the ids of its trace and the run's tokens."""
    reading = Reading(sender.room.clickhouse, room.feedback_store)

    async def read(run):
        run_id, fields = UUID(run["id"]), ["total_tokens", "trace_id"]
        by_id = await reading.get(sender.workspace_id, run_id, fields=fields)
        of_trace = await reading.query(sender.workspace_id, RunsFilter(trace=by_id["trace_id"]), fields=["name"])
        return {str(each["id"]) for each in of_trace.runs}, by_id["total_tokens"]

    return read


async def stored(sender):
    """Return the stored values of all runs, and the number of their rows."""
    sql = "SELECT * FROM trace_runs WHERE tenant_id = {t:UUID} ORDER BY id"
    sizes = "SELECT sum(payload_bytes) FROM trace_run_rows WHERE tenant_id = {t:UUID}"
    values = {"t": sender.workspace_id}
    clickhouse = sender.room.clickhouse
    return await clickhouse.dicts(sql, values), await clickhouse.value(sizes, values), await sender.row_count()


def soon():
    return datetime.now(UTC) + timedelta(seconds=1)


async def test_runs_that_only_lists_show_are_found_by_their_ids_and_traces(sender, room, cut_off, shown):
    whole, root = make_run(outputs=USAGE), make_run(inputs={"i": 1})
    child = make_run(root, outputs=USAGE, end_time=root["start_time"])
    await sender.post(whole)
    await cut_off(post=[root, child])
    with pytest.raises(NotFoundError):
        await shown(root)
    runs, size_bytes, rows = await stored(sender)
    assert len(runs) == 3
    await room.inserts.complete(soon())
    assert await shown(root) == ({root["id"], child["id"]}, 3)
    assert await shown(child) == ({root["id"], child["id"]}, 3)
    assert await shown(whole) == ({whole["id"]}, 3)
    assert await stored(sender) == (runs, size_bytes, rows + 2), "nothing else is said than was"
    await room.inserts.complete(soon())
    assert (await stored(sender))[2] == rows + 2, "what is complete is left alone"


async def test_what_an_update_added_is_counted_by_those_above(sender, room, cut_off, shown):
    root = make_run()
    child = make_run(root, run_type="llm")
    await sender.post(root, child)
    await cut_off(patch=[update_of(child, run_type="llm", outputs=USAGE)])
    assert await shown(root) == ({root["id"], child["id"]}, None)
    await room.inserts.complete(soon())
    assert await shown(root) == ({root["id"], child["id"]}, 3)


async def test_what_an_update_said_anew_is_what_those_above_count(sender, room, cut_off, shown):
    root = make_run()
    child = make_run(root, run_type="llm", outputs=USAGE)
    await sender.post(root, child)
    more = {"usage_metadata": {"input_tokens": 1, "output_tokens": 3}}
    for outputs, total in ((USAGE, 3), (more, 4)):
        await sender.patch(update_of(child, run_type="llm", outputs=USAGE))
        await cut_off(patch=[update_of(child, run_type="llm", outputs=outputs)])
        assert await shown(root) == ({root["id"], child["id"]}, 3)
        await room.inserts.complete(soon())
        assert await shown(root) == ({root["id"], child["id"]}, total)
    rows = await sender.row_count()
    await room.inserts.complete(soon())
    assert await sender.row_count() == rows, "what is complete is left alone"


async def test_deleted_runs_stay_deleted(sender, room, cut_off, shown):
    root = make_run()
    await cut_off(post=[root])
    project = next(iter(await sender.project_names()))
    await room.tombstones.bury(sender.workspace_id, [root["id"]])
    key = {"session_id": project, "start_time": datetime.fromisoformat(root["start_time"]), "id": root["id"]}
    columns = {
        name: (kind, [key[name]])
        for name, kind in (("session_id", "UUID"), ("start_time", "DateTime64(6)"), ("id", "UUID"))
    }
    columns["tenant_id"] = ("UUID", [sender.workspace_id])
    columns["deleted_at"] = ("DateTime64(6)", [datetime.now(UTC)])
    await sender.room.clickhouse.insert("trace_run_rows", columns)
    await room.inserts.complete(soon())
    with pytest.raises(NotFoundError):
        await shown(root)


async def test_it_is_looked_for_once_after_each_start_of_the_trace_store(sender, room, cut_off, shown, monkeypatch):
    await room.housekeeping.tick()
    root = make_run()
    await cut_off(post=[root])
    await room.housekeeping.tick()
    with pytest.raises(NotFoundError):
        await shown(root)
    assert abs(await room.inserts.engine_started_at() - await room.inserts.engine_started_at()) <= timedelta(seconds=1)

    async def just_now():
        return soon()

    monkeypatch.setattr(room.inserts, "engine_started_at", just_now)
    await room.housekeeping.tick()
    assert await shown(root) == ({root["id"]}, None)
