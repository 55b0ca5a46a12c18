"""Updates that come before their run, after it, or without the run's place."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import uuid4

import orjson
import pytest

from moorage.traces.sent_body import split_batch
from tests.traces.ingest_rooms import (
    NOW,
    IngestRoom,
    make_run,
    make_sender,
    new_cost,
    update_of,
)

pytest_plugins = "tests.traces.ingest_clients"


async def pieces(body):
    """Yield a JSON body in pieces."""
    yield orjson.dumps(body)


async def test_an_update_by_id_alone_finds_its_run(sender):
    run = make_run(session_name="far")
    await sender.post(run)
    end = (NOW + timedelta(seconds=3)).isoformat()
    answer = await sender.http.patch(
        f"/runs/{run['id']}", json={"end_time": end, "outputs": {"o": 1}, "trace_id": None}
    )
    assert (answer.status_code, answer.json()) == (202, {"message": "Run updated"})
    stored = await sender.read(run["id"])
    assert (stored["outputs"], stored["status"], stored["name"]) == ('{"o":1}', "success", "step")
    assert list((await sender.project_names()).values()) == ["far"]


async def test_an_update_without_a_project_follows_its_trace(sender):
    root = make_run(session_name="far")
    child = make_run(root)
    await sender.post(root)
    await sender.patch(update_of(child, session_name=None, name="early"))
    stored = await sender.read(child["id"])
    assert (await sender.project_names())[stored["session_id"]] == "far"


async def test_an_update_that_comes_before_its_run_waits_for_it(sender):
    run = make_run(session_name="far", name="posted")
    body = {"name": "patched", "outputs": {"o": 1}, "session_name": None}
    answer = await sender.http.patch(f"/runs/{run['id']}", json=body)
    assert answer.status_code == 202
    await sender.patch(update_of(run, session_name=None, outputs={"o": 2}))
    assert await sender.ids() == []
    assert await sender.project_names() == {}  # above all not the default one
    assert await sender.room.ingest.resolve_parked() == 0
    await sender.post(run)
    await sender.room.postgres.execute("UPDATE parked_updates SET not_before = now()")
    assert await sender.room.ingest.resolve_parked() == 2
    stored = await sender.read(run["id"])
    assert (stored["name"], stored["outputs"]) == ("patched", '{"o":2}')
    assert await sender.room.ingest.resolve_parked() == 0
    assert not await sender.room.postgres.fetch("SELECT id FROM parked_updates")


async def test_parked_updates_are_looked_after_without_being_asked(sender):
    sender.room.ingest.start()
    run = make_run()
    await sender.http.patch(f"/runs/{run['id']}", json={"name": "patched"})
    await sender.post(run)
    for _ in range(200):
        if (await sender.read(run["id"]))["name"] == "patched":
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("nobody looked after it")


async def written_in_the_end(sender):
    """Write parked updates, however long they had to wait."""
    await sender.room.postgres.execute("UPDATE parked_updates SET not_before = now()")
    while await sender.room.ingest.resolve_parked():
        pass
    assert not await sender.room.postgres.fetch("SELECT id FROM parked_updates")


@pytest.mark.parametrize("session_name", ["project", None])
async def test_an_update_that_was_parked_does_not_win_over_a_newer_one(sender, session_name):
    run = make_run()
    await sender.patch({"id": run["id"], "name": "first", "outputs": {"o": 1}, "tags": ["first"]})
    await sender.post(run)
    await sender.patch(update_of(run, session_name=session_name, name="second", outputs={"o": 2}))
    await sender.patch({"id": run["id"], "name": "third"})
    await written_in_the_end(sender)
    stored = await sender.read(run["id"])
    assert (stored["name"], stored["outputs"], stored["tags"]) == ("third", '{"o":2}', ["first"])
    await sender.patch({"id": run["id"], "name": "fourth"})
    assert (await sender.read(run["id"]))["name"] == "fourth"


async def test_updates_that_were_parked_are_written_in_the_order_in_which_they_came(sender):
    run, names = make_run(), [f"update {number}" for number in range(30)]
    for name in names[:2]:
        await sender.patch({"id": run["id"], "name": name, "outputs": {name: 1}})
    await sender.patch(*({"id": run["id"], "name": name} for name in names[2:]))
    # The last ones are due, and the first ones are not yet.
    sql = "UPDATE parked_updates SET not_before = now() + interval '1 hour' WHERE id IN (SELECT min(id::text)::uuid FROM parked_updates)"
    await sender.room.postgres.execute(sql)
    await sender.post(run)
    await written_in_the_end(sender)
    stored = await sender.read(run["id"])
    assert (stored["name"], stored["outputs"]) == (names[-1], '{"update 1":1}')


async def test_an_update_that_says_its_place_is_behind_one_of_the_same_request_that_does_not(sender):
    run = make_run()
    await sender.patch({"id": run["id"], "name": "first", "tags": ["first"]}, update_of(run, name="second"))
    await written_in_the_end(sender)  # though the run itself never came
    stored = await sender.read(run["id"])
    assert (stored["name"], stored["tags"], str(stored["trace_id"])) == ("second", ["first"], run["id"])


async def test_what_another_process_has_parked_comes_first_too(sender, platform_postgres, clickhouse):
    run, before = make_run(), make_run()
    other = IngestRoom(platform_postgres, clickhouse, sender.room.bucket)
    await other.ingest.write_json(sender.caller, pieces({"post": [before], "patch": []}), split_batch, new_cost())
    await other.ingest.write_json(
        sender.caller, pieces({"patch": [{"id": before["id"], "name": "asked"}]}), split_batch, new_cost()
    )
    await sender.patch({"id": run["id"], "name": "first"})
    both = {"post": [run], "patch": [update_of(run, name="second")]}
    await other.ingest.write_json(sender.caller, pieces(both), split_batch, new_cost())
    async with sender.room.parked.alone():  # one process at a time
        assert await other.ingest.resolve_parked() == 0
    await asyncio.gather(sender.room.ingest.resolve_parked(), other.ingest.resolve_parked())
    await written_in_the_end(sender)
    assert (await sender.read(run["id"]))["name"] == "second"


async def test_updates_that_cannot_be_written_do_not_hold_others_up(sender):
    lost, runs = make_run(), [make_run() for _ in range(3)]
    await sender.patch(*({"id": lost["id"], "name": str(number)} for number in range(40)))
    for run in runs:
        await sender.patch({"id": run["id"], "name": "patched"})
        await sender.post(run)
    await sender.room.postgres.execute("UPDATE parked_updates SET not_before = now()")
    assert await sender.room.ingest.resolve_parked() == 3
    assert not await sender.room.parked.page(20), "those are put off"
    await sender.room.postgres.execute("DELETE FROM parked_updates")


async def test_an_update_of_a_run_of_another_workspace_changes_nothing_there(sender, platform_postgres, clickhouse):
    run = make_run(name="mine")
    await sender.post(run)
    async with make_sender(platform_postgres, clickhouse) as other:
        assert (await other.http.patch(f"/runs/{run['id']}", json={"name": "stolen"})).status_code == 202
        await other.room.ingest.resolve_parked()
        assert await other.ids() == []
        waiting = "SELECT workspace_id FROM parked_updates WHERE run_id = %s"
        assert await other.room.postgres.fetch_one(waiting, (run["id"],)) == {"workspace_id": other.workspace_id}
    assert (await sender.read(run["id"]))["name"] == "mine"
    await sender.room.postgres.execute("DELETE FROM parked_updates")


async def test_an_update_a_day_later_is_merged(sender):
    run = make_run(at=datetime.now(UTC) - timedelta(days=1))
    await sender.post(run)
    await sender.patch({"id": run["id"], "outputs": {"late": True}})
    assert (await sender.read(run["id"]))["outputs"] == '{"late":true}'


async def test_runs_that_name_only_their_parent_find_their_place(sender):
    root = {
        "id": str(uuid4()),
        "name": "root",
        "run_type": "chain",
        "start_time": NOW.isoformat(),
        "session_name": "rest",
    }
    child = {
        **root,
        "id": str(uuid4()),
        "parent_run_id": root["id"],
        "start_time": (NOW + timedelta(seconds=1)).isoformat(),
    }
    grandchild = {**child, "id": str(uuid4()), "parent_run_id": child["id"]}
    for run in (root, child):
        assert (await sender.http.post("/runs", json=run)).json() == {"message": "Run created"}
    await sender.post(grandchild)
    stored = await sender.read(grandchild["id"])
    assert [str(found) for found in stored["parent_run_ids"]] == [root["id"], child["id"]]
    assert str(stored["trace_id"]) == root["id"]
    family = [{**child, "id": str(uuid4())}, {**child, "id": str(uuid4())}]
    family[0]["parent_run_id"], family[1]["parent_run_id"] = family[1]["id"], "00000000-0000-4000-8000-000000000001"
    await sender.post(*family)
    stored = await sender.read(family[0]["id"])
    assert [str(found) for found in stored["parent_run_ids"]] == [family[1]["parent_run_id"], family[1]["id"]]


async def test_a_deep_chain_of_runs_that_name_only_their_parent_is_refused_from_the_hundredth_level_on(sender):
    """Each dotted order names all ancestors: thousands of levels would take gigabytes."""
    ids = [str(uuid4()) for _ in range(3000)]
    shared = {"name": "step", "run_type": "chain", "start_time": NOW.isoformat(), "session_name": "deep"}
    chain = [{**shared, "id": ids[0]}] + [
        {**shared, "id": run_id, "parent_run_id": parent_id} for parent_id, run_id in pairwise(ids)
    ]
    answer = await sender.http.post("/runs/batch", json={"post": chain[::-1]})
    assert answer.status_code == 422
    assert "a run more than 100 levels below its root needs a dotted_order" in answer.text
    assert set(await sender.ids()) == set(ids[:100])
