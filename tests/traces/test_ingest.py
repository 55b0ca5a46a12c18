"""Trace runs in: what is stored of what was sent, in whatever order and however often; and what is refused."""

import asyncio
import gzip
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from uuid import UUID, uuid4

import orjson
import pytest
import zstandard

from moorage.http.request_limits import RequestLimits
from moorage.kernel.access import Scope
from moorage.kernel.errors import UnavailableError
from moorage.traces import ingest, run_buffer
from moorage.traces.parse_run import split_batch
from moorage.traces.routes import ingest as routes
from tests.accounts.houses import make_house
from tests.traces.ingest_rooms import (
    MULTIPART,
    NOW,
    IngestRoom,
    encode_parts,
    make_run,
    make_sender,
    new_cost,
    update_of,
)

pytest_plugins = ("tests.accounts.fixtures", "tests.traces.fixtures")


@pytest.fixture
async def sender(platform_postgres, clickhouse):
    """A client of a workspace of the test's own."""
    async with make_sender(platform_postgres, clickhouse) as made:
        yield made


async def pieces(body):
    """A JSON body as it streams in."""
    yield orjson.dumps(body)


def zstd(data):
    packed = io.BytesIO()
    with zstandard.ZstdCompressor(level=1).stream_writer(packed, closefd=False) as writer:
        writer.write(data)
    return packed.getvalue()


# --- what is stored ---------------------------------------------------------------------------------------------------


async def test_a_run_comes_back_as_it_was_sent(sender):
    run = make_run(
        tags=["a", "b"], end_time=(NOW + timedelta(seconds=2)).isoformat(), reference_example_id=str(uuid4())
    )
    inputs, outputs = b'{"q": "\\u0000  \xc3\xa4",  "n": 1.0}', b'{"a": [1, {}]}'
    extra = {
        "metadata": {"thread_id": "t", "n": 1, "deep": {"x": []}},
        "runtime": {"sdk": "py"},
        "invocation_params": {},
    }
    events = [{"name": "new_token", "time": "2026-06-15T12:00:01"}]
    answer = await sender.multipart(
        (f"post.{run['id']}.outputs", outputs),
        (f"post.{run['id']}.extra", extra),
        (f"post.{run['id']}", run),
        (f"post.{run['id']}.events", events),
        (f"post.{run['id']}.inputs", inputs),
        (f"post.{run['id']}.serialized", {"lc": 1}),
    )
    assert answer.status_code == 202
    stored = await sender.read(run["id"])
    assert (stored["inputs"], stored["outputs"]) == (inputs.decode(), outputs.decode())
    assert orjson.loads(stored["extra"]) == extra
    assert orjson.loads(stored["metadata_json"]) == extra["metadata"]
    assert orjson.loads(stored["events"]) == events
    assert (stored["name"], stored["run_type"], stored["status"], stored["tags"]) == (
        "step",
        "chain",
        "success",
        ["a", "b"],
    )
    assert (stored["start_time"], stored["end_time"]) == (NOW, NOW + timedelta(seconds=2))
    assert stored["first_token_time"] == NOW + timedelta(seconds=1)
    assert (stored["thread_id"], stored["trace_tier"], stored["is_root"]) == ("t", "longlived", True)
    assert str(stored["reference_example_id"]) == run["reference_example_id"]
    assert (await sender.project_names())[stored["session_id"]] == "project"


async def test_a_child_knows_its_ancestors(sender):
    root = make_run()
    child = make_run(root)
    grandchild = make_run(child)
    await sender.post(grandchild, child, root)
    stored = await sender.read(grandchild["id"])
    assert [str(found) for found in stored["parent_run_ids"]] == [root["id"], child["id"]]
    assert (str(stored["trace_id"]), str(stored["parent_run_id"]), stored["is_root"]) == (
        root["id"],
        child["id"],
        False,
    )
    assert await sender.ids() == [root["id"], child["id"], grandchild["id"]]


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstd), ("zstd", zstandard.compress)])
async def test_a_compressed_body_is_taken(sender, encoding, pack):
    run = make_run()
    body = pack(encode_parts([(f"post.{run['id']}", run)]))
    headers = {**MULTIPART, "Content-Encoding": encoding, "X-Pre-Compressed-Size": "1"}
    answer = await sender.http.post("/api/v1/runs/multipart", content=body, headers=headers)
    assert answer.status_code == 202, answer.text
    assert await sender.ids() == [run["id"]]


async def test_one_request_may_mix_traces_projects_and_operations_and_makes_one_row_a_run(sender):
    first, second = make_run(session_name="a", error="broke"), make_run(session_name="b")
    answer = await sender.multipart(
        (f"patch.{first['id']}", update_of(first, end_time=(NOW + timedelta(seconds=1)).isoformat())),
        (f"patch.{first['id']}.outputs", {"n": 1}),
        (f"post.{second['id']}", second),
        (f"post.{first['id']}", first),
        (f"post.{first['id']}.inputs", {"i": 1}),
        (f"patch.{first['id']}", update_of(first, name="renamed")),
        (f"patch.{first['id']}.outputs", {"n": 2}),
    )
    assert answer.status_code == 202
    stored = await sender.read(first["id"])
    assert (stored["name"], stored["inputs"], stored["outputs"], stored["error"]) == (
        "renamed",
        '{"i": 1}',
        '{"n": 2}',
        "broke",
    )
    assert stored["end_time"] == NOW + timedelta(seconds=1)
    assert set((await sender.project_names()).values()) == {"a", "b"}
    assert await sender.row_count() == 2


@pytest.mark.parametrize("order", ["post patch patch", "patch post patch", "patch patch post", "post patch patch post"])
async def test_updates_win_in_whatever_order_and_are_merged(sender, order):
    run = make_run(name="posted", inputs={"i": 1}, outputs={"o": 0}, tags=["posted"])
    patches = [
        update_of(run, outputs={"o": 1}, tags=["first"], end_time=(NOW + timedelta(seconds=1)).isoformat()),
        update_of(run, outputs={"o": 2}, name=None, error=None, tags=None),
    ]
    for operation in order.split():
        await (sender.post(dict(run)) if operation == "post" else sender.patch(patches.pop(0)))
    stored = await sender.read(run["id"])
    assert (stored["name"], stored["inputs"], stored["outputs"]) == ("posted", '{"i":1}', '{"o":2}')
    assert (stored["tags"], stored["status"]) == (["first"], "success")


async def test_a_random_history_ends_as_a_plain_model_says(sender):
    random = Random(7)
    runs = [make_run(session_name=random.choice("ab")) for _ in range(40)]
    said = {run["id"]: ({}, {}) for run in runs}  # what posts said, what patches said; a later word replaces
    while operations := [random.choice(runs) for _ in range(random.randint(1, 12))]:
        batch = {"post": [], "patch": []}
        for run in operations:
            fields = {name: make(random) for name, make in WORDS.items() if random.random() < 0.4}
            is_patch = random.random() < 0.5
            made = update_of(run, **fields) if is_patch else {**run, **fields}
            batch["patch" if is_patch else "post"].append(made)
        for kind, part in batch.items():  # a batch is read posts first
            for made in part:
                said[made["id"]][kind == "patch"].update({name: made[name] for name in WORDS if name in made})
        assert (await sender.http.post("/runs/batch", content=orjson.dumps(batch))).status_code == 202
        if random.random() < 0.03:
            break
    for run_id, (posted, patched) in said.items():
        stored = await sender.read(run_id) or {}
        expected = {name: as_stored(name, value) for name, value in {**posted, **patched}.items()}
        assert {name: stored[name] for name in expected} == expected


WORDS = {
    "name": lambda random: f"name {random.random()}",
    "error": lambda random: f"error {random.random()}",
    "inputs": lambda random: {"i": random.random()},
    "outputs": lambda random: {"o": random.random()},
    "tags": lambda random: [str(random.random())],
    "end_time": lambda random: (NOW + timedelta(seconds=random.randint(1, 99))).isoformat(),
}


def as_stored(name, value):
    if name in {"inputs", "outputs"}:
        return orjson.dumps(value).decode()
    return datetime.fromisoformat(value) if name == "end_time" else value


async def test_a_run_without_a_project_is_in_the_default_one(sender):
    runs = [make_run(session_name=name) for name in (None, "", "default")]
    await sender.post(*runs)
    assert list((await sender.project_names()).values()) == ["default"]


async def test_a_project_starts_with_its_first_run(sender):
    second, first = (
        make_run(session_name="p", at=NOW - timedelta(days=1)),
        make_run(session_name="p", at=NOW - timedelta(days=2)),
    )
    await sender.post(second, first)
    await sender.post(make_run(session_name="p"))
    start = "SELECT start_time FROM projects WHERE workspace_id = %s"
    row = await sender.room.postgres.fetch_one(start, (sender.workspace_id,))
    assert row["start_time"] == NOW - timedelta(days=2)


async def test_a_project_may_be_named_by_its_id(sender):
    project_id = (await sender.room.projects.ensure(sender.workspace_id, {"mine": NOW}))["mine"]
    run = make_run(session_name="other", session_id=str(project_id))
    await sender.post(run)
    assert (await sender.read(run["id"]))["session_id"] == project_id


async def test_the_tier_of_the_project_is_on_its_runs(sender):
    await sender.room.projects.ensure(sender.workspace_id, {"short": NOW})
    await sender.room.postgres.execute(
        "UPDATE projects SET trace_tier = 'shortlived' WHERE workspace_id = %s", (sender.workspace_id,)
    )
    run = make_run(session_name="short")
    sender.room.projects._kept.clear()
    await sender.post(run)
    assert (await sender.read(run["id"]))["trace_tier"] == "shortlived"


# --- updates that say little --------------------------------------------------------------------------------------------


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
    """Write what is parked, however long it had to wait."""
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
    # The last ones are due, the first ones not yet.
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
    assert await sender.room.parked.next_in_s() > 0
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


# --- tokens and costs ---------------------------------------------------------------------------------------------------

MODEL = {"metadata": {"ls_provider": "openai", "ls_model_name": "gpt-4o-mini"}}


async def test_costs_follow_from_tokens_and_the_shipped_prices(sender):
    usage = {"input_tokens": 1_000_000, "output_tokens": 1000, "input_token_details": {"cache_read": 500_000}}
    run = make_run(run_type="llm", extra=MODEL, outputs={"usage_metadata": usage})
    await sender.post(run)
    stored = await sender.read(run["id"])
    assert (stored["prompt_tokens"], stored["completion_tokens"], stored["total_tokens"]) == (
        1_000_000,
        1000,
        1_001_000,
    )
    assert (stored["prompt_cost"], stored["completion_cost"]) == (Decimal("0.1125"), Decimal("0.0006"))
    assert stored["total_cost"] == Decimal("0.1131")
    assert orjson.loads(stored["prompt_token_details"]) == {"cache_read": 500_000}
    assert orjson.loads(stored["prompt_cost_details"]) == {"cache_read": "0.0375"}


async def test_given_costs_win_and_are_exact(sender):
    metadata = {**MODEL["metadata"], "usage_metadata": {"input_tokens": 10, "output_tokens": 1, "total_cost": 1e-6}}
    run = make_run(run_type="llm", extra={"metadata": metadata})
    await sender.post(run)
    stored = await sender.read(run["id"])
    assert (stored["total_cost"], stored["prompt_cost"], stored["prompt_tokens"]) == (Decimal("0.000001"), None, 10)


async def test_an_update_with_tokens_alone_takes_the_model_from_its_run(sender):
    """As people do who call the API by hand."""
    runs = [make_run(run_type=kind, extra=MODEL) for kind in ("llm", "chain")]
    await sender.post(*runs)
    for run in runs:
        outputs = {"usage": {"prompt_tokens": 1_000_000, "completion_tokens": 0}}
        assert (await sender.http.patch(f"/runs/{run['id']}", json={"outputs": outputs})).status_code == 202
    model_call, chain = [await sender.read(run["id"]) for run in runs]
    assert (model_call["prompt_cost"], model_call["total_tokens"]) == (Decimal("0.15"), 1_000_000)
    assert (chain["prompt_cost"], chain["total_tokens"]) == (None, None)
    both = make_run(run_type="llm", extra=MODEL)
    outputs = {"usage": {"prompt_tokens": 2_000_000, "completion_tokens": 0}}
    await sender.multipart(
        (f"post.{both['id']}", both), (f"patch.{both['id']}", update_of(both)), (f"patch.{both['id']}.outputs", outputs)
    )
    assert (await sender.read(both["id"]))["prompt_cost"] == Decimal("0.3")


# --- attachments and feedback -------------------------------------------------------------------------------------------


async def test_feedback_comes_along(sender):
    run, feedback_id = make_run(), str(uuid4())
    feedback = {"id": feedback_id, "run_id": run["id"], "trace_id": run["id"], "key": "quality", "score": 0.5}
    answer = await sender.multipart((f"post.{run['id']}", run), (f"feedback.{feedback_id}", feedback))
    assert answer.status_code == 202, answer.text
    sql = "SELECT id, run_id, key, score FROM feedback WHERE tenant_id = {t:UUID}"
    rows = await sender.room.clickhouse.rows(sql, {"t": sender.workspace_id})
    assert rows == [(UUID(feedback_id), UUID(run["id"]), "quality", 0.5)]


async def test_bad_feedback_is_told_and_the_run_is_stored(sender):
    run = make_run()
    answer = await sender.multipart((f"post.{run['id']}", run), (f"feedback.{uuid4()}", {"trace_id": run["id"]}))
    assert answer.status_code == 422
    assert "key" in answer.json()["details"]
    assert await sender.ids() == [run["id"]]


# --- what is refused ----------------------------------------------------------------------------------------------------


async def test_a_bad_run_does_not_take_its_neighbours_along(sender):
    good, bad, crossed = make_run(), make_run(run_type="model"), make_run(trace_id=str(uuid4()))
    answer = await sender.multipart(*((f"post.{run['id']}", run) for run in (bad, good, crossed)))
    assert answer.status_code == 422
    told = answer.json()
    assert told["error"].startswith("Unprocessable entity: 2 of the runs were refused, the others are stored")
    assert bad["id"] in told["details"]
    assert crossed["id"] in told["details"]
    assert await sender.ids() == [good["id"]]


async def test_a_contradictory_order_is_a_bad_request(sender):
    run = make_run(parent_run_id=str(uuid4()))
    answer = await sender.http.post("/runs/batch", json={"post": [run]})
    assert answer.status_code == 400
    assert "dotted_order must contain at least two parts" in answer.json()["error"].replace(
        "'dotted_order': it", "dotted_order"
    )


async def test_a_project_of_another_workspace_is_refused(sender, platform_postgres, clickhouse):
    async with make_sender(platform_postgres, clickhouse) as other:
        foreign = (await other.room.projects.ensure(other.workspace_id, {"theirs": NOW}))["theirs"]
    good, bad = make_run(), make_run(session_id=str(foreign))
    answer = await sender.http.post("/runs/batch", json={"post": [bad, good]})
    assert answer.status_code == 422
    assert f"{foreign} is not a project of this workspace" in answer.json()["error"]
    assert await sender.ids() == [good["id"]]


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ([("post.x.inputs", {})], "missing"),
        ([("other.1", {})], "Unknown part"),
        ([("post", {})], "UUID"),
        ([("post.1.color", {})], "Unknown field"),
        ([("feedback.1", [])], "Feedback"),
        ([("attachment.1.a.b", b"")], "attachment"),
    ],
)
async def test_parts_that_are_nothing_we_know_are_refused(sender, parts, complaint):
    answer = await sender.multipart(*parts)
    assert answer.status_code == 422
    assert complaint in answer.json()["error"]


async def test_nothing_is_kept_of_a_broken_body(sender):
    run = make_run()
    whole = encode_parts([(f"post.{run['id']}", run)])
    wrong = whole.replace(b"Content-Length: ", b"Content-Length: 1")
    for broken in (b"", whole[:-20], whole[20:], wrong, b"{}", whole.replace(b"\r\n", b"\n")):
        answer = await sender.http.post("/runs/multipart", content=broken, headers=MULTIPART)
        assert (answer.status_code, set(answer.json())) == (422, {"error", "details"})
    assert (await sender.http.post("/runs/multipart", content=whole)).status_code == 422
    assert (await sender.http.post("/runs/batch", content=b"{")).status_code == 422
    assert await sender.ids() == []


async def test_bodies_over_a_limit_are_refused(sender, monkeypatch):
    monkeypatch.setattr(routes, "WIRE_BYTES_MAX", 10_000)
    monkeypatch.setattr(routes, "UNPACKED_BYTES_MAX", 20_000)
    bomb = {**MULTIPART, "Content-Encoding": "zstd"}
    for body, headers in ((bytes(10_001), MULTIPART), (zstd(bytes(10_000_000)), bomb)):
        answer = await sender.http.post("/runs/multipart", content=body, headers=headers)
        assert (answer.status_code, "larger than" in answer.text or "more than" in answer.text) == (413, True)


async def test_only_a_key_that_may_write_runs_is_served(platform_postgres, clickhouse, sender):
    house = make_house(platform_postgres)
    sender.room.serve(house)
    workspace = await house.make_workspace()
    read_only = await house.make_key(workspace, Scope.RUNS_READ)
    for key, status in ((None, 401), (read_only, 403)):
        async with house.client(key) as http:
            answers = [
                await http.post("/runs/multipart", content=b""),
                await http.post("/runs/batch", json={}),
                await http.post("/runs", json={}),
                await http.patch(f"/runs/{uuid4()}", json={}),
            ]
        assert [answer.status_code for answer in answers] == [status] * 4


# --- deleted runs -------------------------------------------------------------------------------------------------------


async def test_what_comes_late_for_a_deleted_trace_stays_away(sender):
    root = make_run()
    child = make_run(root)
    await sender.post(root)
    now = datetime.now(UTC)
    tombstone = {
        "tenant_id": ("UUID", [sender.workspace_id]),
        "id": ("UUID", [root["id"]]),
        "deleted_at": ("DateTime64(6)", [now]),
    }
    await sender.room.clickhouse.insert("deleted_runs", tombstone)
    sender.room.writes._none_deleted_until = 0
    other = make_run()
    await sender.post(child, other)
    await sender.patch(update_of(root, name="back"))
    assert set(await sender.ids()) == {root["id"], other["id"]}  # the root's own row is marked by whoever deletes it
    assert (await sender.read(root["id"]))["name"] == "step"


# --- large ones ---------------------------------------------------------------------------------------------------------


async def test_a_run_of_twenty_megabytes_and_a_trace_of_ten_thousand_runs_are_taken(sender):
    large = make_run()
    inputs = orjson.dumps({"text": "x" * 20_000_000})
    assert (
        await sender.multipart((f"post.{large['id']}", large), (f"post.{large['id']}.inputs", inputs))
    ).status_code == 202
    assert len((await sender.read(large["id"]))["inputs"]) == len(inputs)
    root = make_run(session_name="many")
    runs = [root, *(make_run(root) for _ in range(9_999))]
    bodies = [[(f"post.{run['id']}", run) for run in runs[at : at + 1000]] for at in range(0, 10_000, 1000)]
    answers = await asyncio.gather(*(sender.multipart(*parts) for parts in bodies))
    assert {answer.status_code for answer in answers} == {202}
    sql = "SELECT count(), uniqExact(id) FROM trace_runs WHERE tenant_id = {t:UUID} AND trace_id = {r:UUID}"
    assert await sender.room.clickhouse.rows(sql, {"t": sender.workspace_id, "r": root["id"]}) == [(10_000, 10_000)]


# --- overload and failing engines ---------------------------------------------------------------------------------------


async def test_requests_that_wait_together_become_one_insert(sender, monkeypatch):
    inserts, tasks, may_go_on = [], [], asyncio.Event()
    insert, buffer = sender.room.writes.insert, sender.room.ingest._buffer

    async def counted(rows):
        inserts.append(len(rows))
        await may_go_on.wait()
        await insert(rows)

    async def come(*requests):
        """Until they wait for the insert that is under way; the first one is itself that."""
        tasks.extend(map(asyncio.create_task, requests))
        async with asyncio.timeout(30):
            while len(inserts) + len(buffer._groups._waiting) < len(tasks):  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)

    monkeypatch.setattr(sender.room.writes, "insert", counted)
    run = make_run()
    await come(sender.post(make_run()))
    await come(*(sender.post(make_run()) for _ in range(20)), sender.post(run))
    await come(sender.patch(update_of(run, name="patched")))
    may_go_on.set()
    await asyncio.gather(*tasks)
    assert inserts == [1, 21]
    assert (await sender.read(run["id"]))["name"] == "patched"


async def test_a_row_that_the_engine_refuses_fails_alone(sender, monkeypatch):
    insert = sender.room.writes.insert
    poisoned = make_run()

    async def refusing(rows):
        if any(row.key.id == poisoned["id"] for row in rows):
            raise ValueError("the engine does not like it")
        await insert(rows)

    monkeypatch.setattr(sender.room.writes, "insert", refusing)
    runs = [make_run() for _ in range(5)]
    neighbour = asyncio.create_task(sender.post(make_run()))
    answer = await sender.http.post("/runs/batch", json={"post": [*runs, poisoned]})
    await neighbour
    assert answer.status_code == 422
    assert f"The trace store cannot take: run {poisoned['id']}" in answer.json()["details"]
    assert set(await sender.ids()) >= {run["id"] for run in runs}
    assert poisoned["id"] not in await sender.ids()


async def test_an_engine_that_is_away_fails_all_who_wait_and_nothing_is_acknowledged(sender, monkeypatch):
    async def away(rows):
        await asyncio.sleep(0.05)
        raise UnavailableError("The trace store is not available; try again in a moment")

    monkeypatch.setattr(sender.room.writes, "insert", away)
    answers = await asyncio.gather(*(sender.http.post("/runs/batch", json={"post": [make_run()]}) for _ in range(5)))
    assert {(answer.status_code, answer.headers["retry-after"]) for answer in answers} == {(503, "2")}
    assert set(answers[0].json()) == {"error", "details"}
    monkeypatch.undo()
    await sender.post(make_run())
    assert len(await sender.ids()) == 1


async def test_who_waits_too_long_is_told_before_giving_up(sender, monkeypatch):
    go_on = asyncio.Event()
    insert = sender.room.writes.insert

    async def hanging(rows):
        await go_on.wait()
        await insert(rows)

    # Long enough for each to come to its insert. In Python 3.11 `wait_for`, which psycopg waits with, may swallow a
    # cancellation that comes together with the answer of the database.
    monkeypatch.setattr(ingest, "_ANSWER_S", 2.0)
    monkeypatch.setattr(sender.room.writes, "insert", hanging)
    requests = [sender.http.post("/runs/batch", json={"post": [make_run()]}) for _ in range(3)]
    assert {answer.status_code for answer in await asyncio.gather(*requests)} == {503}
    assert not sender.room.ingest._buffer._groups._waiting  # nobody waits for these any more
    go_on.set()
    monkeypatch.setattr(ingest, "_ANSWER_S", 9)
    await sender.post(make_run())


async def test_more_than_fits_in_memory_is_told_to_come_again(sender, monkeypatch):
    started, go_on = asyncio.Event(), asyncio.Event()
    insert = sender.room.writes.insert

    async def slow(rows):
        started.set()
        await go_on.wait()
        await insert(rows)

    monkeypatch.setattr(sender.room.writes, "insert", slow)
    sender.http._transport.app.state.budget._bytes_max = 5_000
    large = make_run(inputs={"text": "x" * 10_000})  # alone it may be as large as it likes
    first = asyncio.create_task(sender.post(large))
    await started.wait()
    answer = await sender.http.post("/runs/batch", json={"post": [make_run()]})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    go_on.set()
    await first
    await sender.post(make_run())


async def test_a_stop_writes_what_waits(sender, monkeypatch):
    insert = sender.room.writes.insert

    async def slow(rows):
        await asyncio.sleep(0.1)
        await insert(rows)

    monkeypatch.setattr(sender.room.writes, "insert", slow)
    requests = [asyncio.create_task(sender.post(make_run())) for _ in range(10)]
    await asyncio.sleep(0.05)
    await sender.room.ingest.stop()
    await asyncio.gather(*requests)
    assert len(await sender.ids()) == 10


def test_one_insert_is_bounded_in_rows_and_bytes():
    assert run_buffer.ROWS_MAX <= 10_000
    assert RequestLimits(1).held_bytes_max > run_buffer.INSERT_BYTES_MAX
