"""Files that come with runs: stored in the bucket, and read by signed addresses."""

import time
from uuid import UUID, uuid4

import orjson
import pytest

from moorage.kernel.errors import ForbiddenError, NotFoundError
from moorage.traces import attachments as module
from moorage.traces.attachments import Attachments
from tests.traces.ingest_rooms import BOUNDARY, MULTIPART, encode_parts, make_run, make_sender, update_of

pytest_plugins = ("tests.accounts.fixtures", "tests.traces.fixtures")


@pytest.fixture
async def sender(platform_postgres, clickhouse):
    async with make_sender(platform_postgres, clickhouse) as made:
        yield made


async def stored(sender, run):
    return orjson.loads((await sender.read(run["id"]))["attachments"])


async def fetch(sender, facts, **headers):
    url = sender.room.attachments.url(facts["key"], facts["mime_type"])
    return await sender.http.get(f"/api/v1{url}", headers=headers)


async def test_an_attachment_comes_back_as_it_was_sent(sender):
    run, data = make_run(), bytes(range(256)) * 10
    part = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="attachment.{run["id"]}.my file"\r\n'
        f"Content-Type: image/png; length={len(data)}\r\n\r\n"
    ).encode() + data
    body = part + b"\r\n" + encode_parts([(f"post.{run['id']}", run)])
    assert (await sender.http.post("/runs/multipart", content=body, headers=MULTIPART)).status_code == 202
    facts = (await stored(sender, run))["my file"]
    assert (facts["mime_type"], facts["size_bytes"]) == ("image/png", len(data))
    assert facts["key"].startswith(f"attachments/{sender.workspace_id}/{run['id']}/{run['id']}/")
    answer = await fetch(sender, facts, **{"x-api-key": ""})
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, data, "image/png")
    # The file may come from anywhere, so no browser may execute it.
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]


async def test_attachments_of_a_run_and_of_its_updates_add_up(sender):
    run = make_run()
    await sender.multipart((f"post.{run['id']}", run), (f"attachment.{run['id']}.a", b"1"))
    for name in ("b", "c"):
        await sender.multipart((f"patch.{run['id']}", update_of(run)), (f"attachment.{run['id']}.{name}", b"2"))
    assert set(await stored(sender, run)) == {"a", "b", "c"}


async def test_an_attachment_alone_finds_its_run(sender):
    run = make_run()
    await sender.post(run)
    answer = await sender.multipart((f"attachment.{run['id']}.late", b"x"), (f"attachment.{run['id']}.later", b"y"))
    assert answer.status_code == 202
    assert set(await stored(sender, run)) == {"late", "later"}
    early = make_run()
    await sender.multipart((f"attachment.{early['id']}.early", b"x"))
    await sender.post(early)
    await sender.room.postgres.execute("UPDATE parked_updates SET not_before = now()")
    await sender.room.ingest.resolve_parked()
    assert set(await stored(sender, early)) == {"early"}


async def test_the_id_of_the_run_may_be_written_in_capitals(sender):
    run = make_run()
    name = run["id"].upper()
    await sender.multipart((f"post.{name}", run), (f"attachment.{name}.a", b"1"))
    assert set(await stored(sender, run)) == {"a"}
    assert (await sender.multipart((f"post.{run['id']}", run), ("attachment.1.a", b"1"))).status_code == 422


@pytest.mark.parametrize("name", ["", "a.b", "x" * 501, "a\u2028b"])
async def test_a_name_that_clients_could_not_have_sent_is_refused(sender, name):
    run = make_run()
    answer = await sender.multipart((f"post.{run['id']}", run), (f"attachment.{run['id']}.{name}", b"1"))
    assert answer.status_code == 422
    assert await sender.ids() == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "/", "a/b", "C:\\x", "ä ö"])
async def test_a_hostile_name_stays_within_its_run(sender, name):
    if "." in name:
        name = name.replace(".", "%2e")
    run = make_run()
    await sender.multipart((f"post.{run['id']}", run), (f"attachment.{run['id']}.{name}", b"1"))
    facts = (await stored(sender, run))[name]
    assert facts["key"].startswith(f"attachments/{sender.workspace_id}/{run['id']}/")
    assert (await fetch(sender, facts)).content == b"1"


async def test_a_type_that_is_none_becomes_bytes(sender):
    run = make_run()
    body = encode_parts([(f"post.{run['id']}", run), (f"attachment.{run['id']}.a", b"1")])
    body = body.replace(b"application/json\r\nContent-Length: 1\r\n", b"text/html<script>\r\nContent-Length: 1\r\n")
    assert (await sender.http.post("/runs/multipart", content=body, headers=MULTIPART)).status_code == 202
    assert (await stored(sender, run))["a"]["mime_type"] == "application/octet-stream"


async def test_an_address_is_signed_and_expires(sender, monkeypatch):
    attachments = sender.room.attachments
    token = attachments.url("attachments/x", "text/plain").rpartition("/")[2]
    claim, name, signature = token.split(".")
    forged = Attachments(bucket=None, signing_keys={"new": b"other"}).url("attachments/x", "a/b").rpartition("/")[2]
    for wrong in (forged, f"{claim}x.{name}.{signature}", f"{claim}.none.{signature}", "x", "", f"{claim}.{name}.ä"):
        with pytest.raises(ForbiddenError):
            await attachments.open(wrong)
    with pytest.raises(NotFoundError):
        await attachments.open(token)
    now = time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 3601)
    with pytest.raises(ForbiddenError, match="expired"):
        await attachments.open(token)
    assert (await sender.http.get(f"/attachments/{forged}")).status_code == 403


async def test_an_older_key_still_opens(sender):
    await sender.room.attachments._bucket.put("attachments/x", b"data")
    old = Attachments(bucket=None, signing_keys={"old": b"o" * 32}).url("attachments/x", "text/plain")
    assert (await sender.http.get(old)).content == b"data"


async def test_the_attachments_of_a_trace_are_deleted(sender):
    root, other = make_run(), make_run()
    child = make_run(root)
    for run in (root, child, other):
        await sender.multipart((f"post.{run['id']}", run), (f"attachment.{run['id']}.a", b"1"))
    kept = [(await stored(sender, run))["a"] for run in (root, child, other)]
    for _ in range(2):
        await sender.room.attachments.delete_trace(sender.workspace_id, UUID(root["id"]))
    await sender.room.attachments.delete_trace(uuid4(), UUID(other["id"]))
    assert [(await fetch(sender, facts)).status_code for facts in kept] == [404, 404, 200]
