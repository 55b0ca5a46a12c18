"""Ingest of trace runs: what is stored, in any order and after any number of repetitions; and what is refused."""

import asyncio
import gzip
import io
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID, uuid4

import orjson
import pytest
import zstandard

from moorage.kernel.access import Scope
from moorage.traces.routes import ingest as routes
from tests.accounts.houses import make_house
from tests.traces.ingest_rooms import (
    MULTIPART,
    NOW,
    encode_parts,
    make_run,
    make_sender,
    update_of,
)

pytest_plugins = "tests.traces.ingest_clients"


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
        for kind, part in batch.items():  # the posts of a batch are read first
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
    sender.room.projects._kept.forget(lambda *_: True)
    await sender.post(run)
    assert (await sender.read(run["id"]))["trace_tier"] == "shortlived"


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
