"""`/v2/deployments` as clients see it, on a real PostgreSQL."""

import asyncio
from uuid import UUID, uuid4

from moorage.accounts.master_key import MasterKeyRotation
from moorage.accounts.records import ALL_SCOPES
from moorage.accounts.store import AccountStore
from moorage.control.records.deployments import SourceConfigRequest, SourceRevisionConfigRequest
from moorage.control.records.oauth import SEALED_CLIENT_SECRET
from moorage.control.records.resources import ResourceSpec
from moorage.control.records.secrets import MASK, SEALED_SECRETS
from moorage.control.records.states import RevisionStatus as S
from moorage.control.records.unserved import UNSERVED
from moorage.control.secret_box import SecretBox
from moorage.kernel.access import Plan, Scope
from moorage.kernel.crypto import KEY_BYTES, MasterKeys
from tests.control.houses import PUBLIC_URL, created, from_git, make_control_house, to_upload

pytest_plugins = "tests.control.fixtures"


def _config(deployment):
    return deployment["source_revision_config"]


async def _patched(client, deployment, **patch):
    answer = await client.patch(f"/v2/deployments/{deployment['id']}", json=patch)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _refused(client, status, deployment, **patch):
    answer = await client.patch(f"/v2/deployments/{deployment['id']}", json=patch)
    assert answer.status_code == status, answer.text
    return answer.text


async def test_a_deployment_is_created_with_its_first_revision(client, control):
    made = await created(client, from_git("agent-one"))
    assert made["tenant_id"] == control.workspace_id
    assert made["name"] == "agent-one"
    assert made["source"] == "github"
    assert made["status"] == "AWAITING_DATABASE"
    assert made["active_revision_id"] is None
    assert made["source_config"]["custom_url"] == f"{PUBLIC_URL}/d/agent-one"
    assert _config(made)["langgraph_config_path"] == _config(made)["graph_config_path"] == "langgraph.json"
    assert _config(made)["repo_ref"] == "main"
    assert _config(made)["repo_commit_sha"] is None
    assert made["secrets"] == [{"name": "OPENAI_API_KEY", "value": MASK}]
    assert "very-secret" not in str(made)
    spec = made["source_config"]["resource_spec"]
    assert spec["min_scale"] == spec["max_scale"] == 1
    assert spec["cpu_limit"] == 2
    assert spec["memory_limit_mb"] == 2048
    assert (await client.get(f"/v2/deployments/{made['id']}")).json() == made
    assert (await client.get(f"/api-host/v2/deployments/{made['id']}")).json() == made
    revision = (await client.get(f"/v2/deployments/{made['id']}/revisions/{made['latest_revision_id']}")).json()
    assert revision["status"] == "AWAITING_BUILD"
    assert revision["number"] == 1
    assert revision["source_revision_config"] == _config(made)
    assert "very-secret" not in str(revision)
    assert len(control.wakes) == 1
    stored = (
        await control.rows.postgres.fetch("SELECT * FROM revisions"),
        await control.rows.postgres.fetch("SELECT * FROM deployments"),
    )
    assert "very-secret" not in str(stored)


async def test_what_is_uploaded_or_pushed_later_begins_without_a_revision(client):
    for source in ("internal_source", "internal_docker"):
        made = await created(client, to_upload(source=source))
        assert made["latest_revision_id"] is None
        assert (await client.get(f"/v2/deployments/{made['id']}/revisions")).json() == {"resources": [], "offset": 0}
        # Settings are stored until there is something to run with them.
        patched = await _patched(client, made, secrets=[{"name": "A", "value": "1"}])
        assert patched["latest_revision_id"] is None
        assert patched["secrets"] == [{"name": "A", "value": MASK}]


async def test_an_image_waits_to_be_deployed(client):
    image = {"image_uri": "registry.example.com/agent@sha256:" + "a" * 64}
    body = to_upload(source="external_docker", source_revision_config=image)
    body["source_config"] = {"custom_url": "https://agent.example.com"}
    body["secret_references"] = [{"name": "A", "secret_name": "s", "secret_key": "k"}]
    made = await created(client, body)
    assert made["source_config"]["custom_url"] == "https://agent.example.com"
    assert made["secret_references"] == body["secret_references"]
    assert _config(made)["langgraph_config_path"] is None
    [revision] = (await client.get(f"/v2/deployments/{made['id']}/revisions")).json()["resources"]
    assert revision["status"] == "AWAITING_DEPLOY"
    cleared = await _patched(client, made, secret_references=[])
    assert cleared["secret_references"] == []
    assert cleared["latest_revision_id"] != revision["id"]


_BAD_REQUESTS = [
    ({"name": None}, 422, "name"),
    ({"name": "Not_A_Name"}, 422, "lower-case"),
    ({"name": "a" * 64}, 422, "63"),
    ({"secrets": None}, 422, "secrets"),
    ({"source": "ftp"}, 422, "source"),
    ({"source_config": {}}, 422, "repo_url"),
    ({"source_revision_config": {"repo_ref": "main"}}, 422, "langgraph_config_path"),
    ({"source_revision_config": {"repo_ref": "-x", "graph_config_path": "a.json"}}, 422, "branch"),
    ({"source_revision_config": {"repo_ref": "a..b", "graph_config_path": "a.json"}}, 422, "branch"),
    ({"source_revision_config": {"repo_ref": "main", "graph_config_path": "../a.json"}}, 422, "inside"),
    ({"source_revision_config": {"repo_ref": "main", "graph_config_path": "/etc/passwd"}}, 422, "inside"),
    ({"secrets": [{"name": "POSTGRES_URI", "value": "x"}]}, 422, "reserved"),
    ({"secrets": [{"name": "LSD_ANY", "value": "x"}]}, 422, "reserved"),
    ({"secrets": [{"name": "1A", "value": "x"}]}, 422, "name of a secret"),
    ({"secrets": [{"name": "A", "value": "x"}, {"name": "A", "value": "y"}]}, 422, "twice"),
    ({"secrets": [{"name": "A", "value": MASK}]}, 422, "no value yet"),
    ({"secret_references": [{"name": "A", "secret_name": "s", "secret_key": "k"}]}, 400, "external_docker"),
]
_BAD_CONFIGS = [
    ({"repo_url": "http://github.com/a/b"}, 422, "https"),
    ({"repo_url": "https://user:word@github.com/a/b"}, 422, "user name"),
    ({"repo_url": "ext::sh -c id"}, 422, "not a valid URL"),
    ({"repo_url": "--upload-pack=x"}, 422, "not a valid URL"),
    ({"repo_url": "https://169.254.169.254/a"}, 422, "IP range"),
    ({"repo_url": "https://[::1]/a"}, 422, "IP range"),
    ({"resource_spec": {"min_scale": 3, "max_scale": 2}}, 422, "above"),
    ({"resource_spec": {"min_scale": 17}}, 422, "min_scale is 16 at most"),
    ({"resource_spec": {"max_scale": 17}}, 422, "max_scale is 16 at most"),
    ({"resource_spec": {"min_scale": 0}}, 422, "dev_zero"),
    ({"resource_spec": {"cpu": 64}}, 422, "less than or equal to 8"),
    ({"deployment_type": "huge"}, 422, "dev_free"),
    ({"install_command": "npm i; rm -rf /"}, 422, "shell"),
    ({"build_on_push": True}, 400, "tag"),
]


async def test_what_cannot_be_is_refused_with_its_reason_and_leaves_nothing_behind(client):
    for change, status, words in _BAD_REQUESTS:
        body = {name: value for name, value in (from_git() | change).items() if value is not None}
        answer = await client.post("/v2/deployments", json=body)
        assert (answer.status_code, words in answer.text) == (status, True), (change, answer.text)
        if status == 422:
            assert all(item.keys() == {"loc", "msg", "type"} for item in answer.json()["detail"])
    for config, status, words in _BAD_CONFIGS:
        body = from_git()
        body["source_config"] |= config
        if "build_on_push" in config:
            body["source_revision_config"]["repo_ref"] = "refs/tags/v1"
        answer = await client.post("/v2/deployments", json=body)
        assert (answer.status_code, words in answer.text) == (status, True), (config, answer.text)
    assert (await client.get("/v2/deployments")).json()["resources"] == []


async def test_a_name_is_unique_in_the_installation_until_the_deployment_is_removed(client, control):
    made = await created(client, from_git("only-once"))
    other = await control.house.make_workspace()
    async with control.client(other["api_key"]) as stranger:
        taken = await stranger.post("/v2/deployments", json=from_git("only-once"))
        assert taken.status_code == 409
        assert isinstance(taken.json()["detail"], str)
        assert (await client.delete(f"/v2/deployments/{made['id']}")).status_code == 204
        refused = await stranger.post("/v2/deployments", json=from_git("only-once"))
        assert (refused.status_code, "still being deleted" in refused.text) == (409, True)
    again = await created(client, from_git("only-once"))
    assert again["id"] != made["id"]
    # Removing objects by its name must not remove those of the next deployment.
    path = f"/v2/deployments/{again['id']}"
    assert (await client.delete(path, params={"delete_tracing_project": True})).status_code == 204
    assert "still being deleted" in (await client.post("/v2/deployments", json=from_git("only-once"))).text


async def test_the_last_secret_can_be_removed(client, control):
    made = await created(client, from_git())
    added = await _patched(
        client, made, secrets=[_kept(), {"name": "B", "value": "2"}], remove_secrets=["OPENAI_API_KEY"]
    )
    assert await control.room.deployments.secrets_of(UUID(made["id"])) == {"B": "2"}
    removed = await _patched(client, made, remove_secrets=["B"])
    assert removed["secrets"] == []
    assert removed["latest_revision_id"] != added["latest_revision_id"]
    assert await control.room.deployments.secrets_of(UUID(made["id"])) == {}
    gone = await client.patch(f"/v2/deployments/{made['id']}", json={"remove_secrets": ["B"]})
    assert (gone.status_code, "no secret 'B'" in gone.text) == (422, True)


async def test_what_a_first_attempt_was_made_of_can_be_changed_until_one_has_served(client, control):
    made = await created(client, from_git())
    await control.rows.postgres.execute("UPDATE deployments SET status = 'READY' WHERE id = %s", (made["id"],))
    other = {"source_config": {"repo_url": "https://github.com/someone/other"}, "source_revision_config": {}}
    held = await control.rows.claim(UUID(made["id"]))
    assert await control.rows.revisions.finish(held.lease, S.AWAITING_BUILD, S.BUILD_FAILED, "no such repository")
    bad = {"source_config": {"repo_url": "https://127.0.0.1/agent"}}
    assert (await client.patch(f"/v2/deployments/{made['id']}", json=bad)).status_code == 422
    mended = await _patched(client, made, **other)
    assert mended["source_config"]["repo_url"] == "https://github.com/someone/other"
    await control.rows.roll_out(UUID(made["id"]))
    refused = await client.patch(
        f"/v2/deployments/{made['id']}", json={"source_config": {"repo_url": "https://github.com/a/b"}}
    )
    assert (refused.status_code, "cannot be changed" in refused.text) == (400, True)


async def test_a_deployment_is_ready_once_a_revision_serves(client, control):
    made = await created(client, from_git())
    await control.rows.postgres.execute("UPDATE deployments SET status = 'READY' WHERE id = %s", (made["id"],))

    async def shown(status):
        found = (await client.get("/v2/deployments", params={"status": status})).json()["resources"]
        return [(one["id"], one["status"], one["latest_revision_status"]) for one in found if one["id"] == made["id"]]

    assert await shown("READY") == []
    assert await shown("UNUSED") == [(made["id"], "UNUSED", "AWAITING_BUILD")]
    await control.rows.roll_out(UUID(made["id"]))
    assert await shown("UNUSED") == []
    assert await shown("READY") == [(made["id"], "READY", "DEPLOYED")]


async def test_a_deployment_says_why_its_active_revision_is_down(client, control):
    made = await created(client, from_git())
    await control.rows.postgres.execute("UPDATE deployments SET status = 'READY' WHERE id = %s", (made["id"],))
    revision_id = await control.rows.roll_out(UUID(made["id"]))

    async def told():
        [found] = (await client.get("/v2/deployments", params={"name": made["name"]})).json()["resources"]
        return found["active_revision_message"]

    assert await told() is None
    await control.rows.revisions.report(revision_id, "the agent stays down")
    assert await told() == "the agent stays down"
    await control.rows.revisions.report(revision_id, None)
    assert await told() is None


async def test_what_is_kept_without_acting_is_named_in_warnings(client):
    plain = await created(client, from_git(source_config={"repo_url": "https://github.com/someone/agent"}))
    assert plain["warnings"] == []
    own = plain["source_config"]["custom_url"]
    same = await _patched(client, plain, source_config={"custom_url": own, "resource_spec": {"max_scale": 4}})
    assert same["warnings"] == []
    for config, field in (
        ({"install_command": "npm ci"}, "source_config.install_command"),
        ({"resource_spec": {"queue_cpu": 4}}, "source_config.resource_spec.queue_cpu"),
    ):
        warned = await _patched(client, plain, source_config=config)
        assert field in [warning.split()[0] for warning in warned["warnings"]]
    assert warned["source_config"]["custom_url"] == own, "where it answers"
    assert (await client.get(f"/v2/deployments/{plain['id']}")).json()["warnings"] == warned["warnings"]
    assert (await created(client, from_git()))["warnings"] == []
    image = to_upload(source="external_docker", source_revision_config={"image_uri": "registry.example.com/agent"})
    image["source_config"]["resource_spec"] = {"cpu": 4, "image_pull_secrets": [{"name": "A"}], "labels": {"a": "b"}}
    [labels] = (await created(client, image))["warnings"]
    assert labels.startswith("source_config.resource_spec.labels ")


async def test_images_are_refused_where_nothing_runs_them_and_so_are_names_of_none(platform_postgres, tmp_path, client):
    image = to_upload(source="external_docker", source_revision_config={"image_uri": "registry.example.com/agent"})
    for wrong in ("-v/agent", "registry.example.com/Agent", "a/b@sha256:abc", "a b", "https://registry.example.com/a"):
        body = image | {"source_revision_config": {"image_uri": wrong}}
        answer = await client.post("/v2/deployments", json=body)
        assert (answer.status_code, "is no name of an image" in answer.text) == (400, True), wrong
    house = await make_control_house(platform_postgres, tmp_path, runs_images=False)
    async with house.client() as without:
        answer = await without.post("/v2/deployments", json=image)
        assert answer.status_code == 400
        assert "MOORAGE_DOCKER_HOST" in answer.json()["detail"]


def test_each_field_of_a_deployment_acts_or_is_warned_of():
    acting = {
        *("source_config.repo_url", "source_config.deployment_type", "source_config.resource_spec"),
        *("source_config.build_on_push", "source_config.custom_url", "source_config.integration_id"),
        "source_config.listener_id",
        *("source_revision_config.repo_ref", "source_revision_config.source_tarball_path"),
        "source_revision_config.image_uri",
        *("source_revision_config.langgraph_config_path", "source_revision_config.graph_config_path"),
        *(
            f"source_config.resource_spec.{name}"
            for name in ("min_scale", "max_scale", "cpu", "cpu_limit", "memory_mb", "memory_limit_mb", "db_storage_gi")
        ),
    }
    known = {
        *(f"source_config.{name}" for name in SourceConfigRequest.model_fields),
        *(f"source_revision_config.{name}" for name in SourceRevisionConfigRequest.model_fields),
        *(f"source_config.resource_spec.{name}" for name in ResourceSpec.model_fields),
        "secret_references",
    }
    assert acting | UNSERVED.keys() == known
    assert not acting & UNSERVED.keys()


async def test_a_patch_makes_a_revision_of_a_source_secrets_or_resources_and_of_nothing_else(client):
    made = await created(client, from_git())
    seen = made["latest_revision_id"]
    for patch in (
        {},
        {"display_name": "My agent"},
        {"source_config": {"build_on_push": True}},
        {"source_config": {"custom_url": "https://elsewhere.example.com"}},
        {"source_config": {"install_command": "npm ci"}},
        {"secrets": []},
        {"remove_secrets": []},
        {"secrets": [{"name": "OPENAI_API_KEY", "value": MASK}]},
        {"secret_references": []},
    ):
        assert (await _patched(client, made, **patch))["latest_revision_id"] == seen, patch
    for patch in (
        {"source_revision_config": {}},
        {"source_revision_config": {"repo_ref": None, "graph_config_path": None}},
        {"source_revision_config": {"repo_ref": "main"}},
        {"source_revision_config": {"graph_config_path": "sub/langgraph.json"}},
        {"source_config": {"resource_spec": {"memory_mb": 512}}},
        {"secrets": [{"name": "OPENAI_API_KEY", "value": "sk-very-secret"}]},
        {"secrets": [{"name": "OPENAI_API_KEY", "value": MASK}, {"name": "B", "value": "2"}]},
        {"secrets": [{"name": "B", "value": MASK}]},
    ):
        patched = await _patched(client, made, **patch)
        assert patched["latest_revision_id"] != seen, patch
        seen = patched["latest_revision_id"]
    assert patched["display_name"] == "My agent"
    assert patched["source_config"]["build_on_push"] is True
    assert patched["source_config"]["custom_url"] == "https://elsewhere.example.com"
    assert _config(patched)["langgraph_config_path"] == "sub/langgraph.json"
    assert _config(patched)["repo_ref"] == "main"
    assert patched["source_config"]["resource_spec"]["memory_limit_mb"] == 1024


async def test_resources_are_replaced_as_a_whole(client):
    made = await created(client, from_git(source_config={**from_git()["source_config"], "resource_spec": {"cpu": 4}}))
    assert made["source_config"]["resource_spec"]["cpu_limit"] == 8
    patched = await _patched(client, made, source_config={"resource_spec": {"memory_mb": 512}})
    assert patched["source_config"]["resource_spec"]["cpu"] == 1
    # Values of an answer may be sent back unchanged.
    again = await _patched(client, made, source_config=patched["source_config"])
    assert again["source_config"] == patched["source_config"]


async def test_what_never_changes_is_refused_in_a_patch(client):
    made = await created(client, from_git())
    for name, value in (
        ("integration_id", str(uuid4())),
        ("repo_url", "https://github.com/a/other"),
        ("deployment_type", "prod"),
        ("listener_id", str(uuid4())),
    ):
        assert f"source_config.{name}" in await _refused(client, 400, made, source_config={name: value})
    assert "tag" in await _refused(
        client,
        400,
        made,
        source_config={"build_on_push": True},
        source_revision_config={"repo_ref": "refs/tags/v1"},
    )
    assert "image_uri" in await _refused(client, 400, made, source_revision_config={"image_uri": "a/b"})
    assert "upload-url" in await _refused(
        client,
        400,
        made,
        revision_source="internal_source",
        source_revision_config={"source_tarball_path": "sources/x.tar.gz"},
    )
    assert (await client.get(f"/v2/deployments/{made['id']}")).json() == made, "nothing has changed"


async def test_secrets_are_shown_to_who_may_read_them_and_a_mask_keeps_a_value(client, control):
    made = await created(client, from_git())
    await _patched(client, made, secrets=[{"name": "OPENAI_API_KEY", "value": MASK}, {"name": "B", "value": "two"}])
    key = await control.house.make_key(control.workspace, *ALL_SCOPES)
    async with control.client(key) as reader:
        shown = (await reader.get(f"/v2/deployments/{made['id']}")).json()
        listed = (await reader.get("/v2/deployments", params={"name": made["name"]})).json()["resources"][0]
    assert shown["secrets"] == [{"name": "B", "value": "two"}, {"name": "OPENAI_API_KEY", "value": "sk-very-secret"}]
    assert listed["secrets"] == shown["secrets"]
    assert shown["secrets_hash"] != made["secrets_hash"]
    assert await control.room.deployments.secrets_of(UUID(made["id"])) == {
        "OPENAI_API_KEY": "sk-very-secret",
        "B": "two",
    }


async def test_changes_at_the_same_time_lose_nothing(client, control):
    made = await created(client, from_git())
    await asyncio.gather(
        *(_patched(client, made, secrets=[_kept(), {"name": f"S{number}", "value": "x"}]) for number in range(3)),
        _patched(client, made, display_name="Together"),
        _patched(client, made, source_config={"build_on_push": True}),
        _patched(client, made, source_config={"resource_spec": {"memory_mb": 512}}),
    )
    found = (await client.get(f"/v2/deployments/{made['id']}")).json()
    assert (found["display_name"], found["source_config"]["build_on_push"]) == ("Together", True)
    assert found["source_config"]["resource_spec"]["memory_mb"] == 512
    revisions = (await client.get(f"/v2/deployments/{made['id']}/revisions")).json()["resources"]
    assert [one["number"] for one in revisions] == [5, 4, 3, 2, 1]
    assert found["latest_revision_id"] == revisions[0]["id"]
    secrets = await control.room.deployments.secrets_of(UUID(made["id"]))
    assert secrets["OPENAI_API_KEY"] == "sk-very-secret"
    assert len(secrets) == 2, "each replaces all"


def _kept():
    return {"name": "OPENAI_API_KEY", "value": MASK}


async def test_secrets_open_after_the_master_key_was_rotated(client, control):
    made = await created(client, from_git())
    old, new = bytes(KEY_BYTES), b"n" * KEY_BYTES
    store = AccountStore(control.rows.postgres, Plan.ENTERPRISE)
    rotation = MasterKeyRotation(store, MasterKeys([new, old]), (SEALED_SECRETS, SEALED_CLIENT_SECRET))
    assert (await rotation.rotate())["left"] == 0
    deployment = UUID(made["id"])
    sealed = (await control.rows.deployments.read_secrets([deployment]))[deployment]
    assert SecretBox(MasterKeys([new])).open(deployment, sealed) == {"OPENAI_API_KEY": "sk-very-secret"}


async def test_what_is_too_large_is_refused(client, control):
    object.__setattr__(control.house.app.state.limits, "body_bytes_max", 2**22)
    many = [{"name": f"S{number}", "value": "x" * 60_000} for number in range(20)]
    answer = await client.post("/v2/deployments", json=from_git(secrets=many))
    assert (answer.status_code, "together" in answer.text) == (422, True)
    body = from_git()
    body["source_config"]["resource_spec"] = {"sidecars": [{"name": "s", "image": "x" * 300_000}]}
    answer = await client.post("/v2/deployments", json=body)
    assert (answer.status_code, "larger than" in answer.text) == (422, True)


async def test_a_list_is_newest_first_and_narrowed(client):
    made = [await created(client, from_git(f"list-{word}")) for word in ("apple", "plum", "pear")]
    made.append(await created(client, to_upload("list-upload")))
    await client.delete(f"/v2/deployments/{made[1]['id']}")

    async def names(**query):
        answer = await client.get("/v2/deployments", params=query)
        assert answer.status_code == 200, answer.text
        return [one["name"] for one in answer.json()["resources"]]

    assert await names() == ["list-upload", "list-pear", "list-apple"]
    assert await names(name_contains="", limit=2) == ["list-upload", "list-pear"]
    assert (await client.get("/v2/deployments", params={"limit": 2})).json()["offset"] == 2
    assert await names(limit=2, offset=2) == ["list-apple"]
    assert await names(offset=3) == []
    assert await names(name_contains="AP") == ["list-apple"]
    assert await names(name_contains="%") == []
    assert await names(name="list-pear") == ["list-pear"]
    assert await names(name="list-p") == []
    assert await names(status="AWAITING_DATABASE", deployment_type="dev") == ["list-pear", "list-apple"]
    assert await names(status="READY") == []
    assert await names(deployment_type="dev_zero") == ["list-upload"]
    assert await names(deployment_ids=f"{made[0]['id']},{made[1]['id']}") == ["list-apple"]
    for nothing in ("tag_value_ids", "image_version", "agent_id", "agent_environment"):
        assert await names(**{nothing: "x"}) == []
    assert await names(remote_reconciled="true") == []
    assert len(await names(remote_reconciled="false")) == 3
    for bad in ({"limit": 0}, {"limit": 101}, {"offset": -1}, {"status": "FINE"}, {"deployment_ids": "x"}):
        assert (await client.get("/v2/deployments", params=bad)).status_code == 422, bad


async def test_free_deployments_are_counted(client):
    free = from_git()
    free["source_config"]["deployment_type"] = "dev_free"
    await created(client, free)
    await created(client, from_git())
    assert (await client.get("/v2/deployments/free-count")).json() == {"count": 1}


async def test_what_was_deleted_is_gone_for_callers(client):
    made = await created(client, from_git())
    path = f"/v2/deployments/{made['id']}"
    assert (await client.delete(path, params={"delete_tracing_project": "true"})).status_code == 204
    not_found = {"detail": f"Deployment ID {made['id']} not found.", "error": "not_found"}
    revision = f"{path}/revisions/{made['latest_revision_id']}"
    for method, where in (
        ("GET", path),
        ("DELETE", path),
        ("PATCH", path),
        ("GET", f"{path}/revisions"),
        ("POST", f"{path}/revisions"),
        ("GET", revision),
        ("POST", f"{revision}/redeploy"),
        ("POST", f"{revision}/interrupt"),
        ("POST", f"{path}/upload-url"),
        ("POST", f"{path}/push-token"),
        ("GET", f"{revision}/logs?type=build"),
        ("GET", f"/v2/deployment-logs?deployment_id={made['id']}"),
    ):
        answer = await client.request(method, where, content="{}")
        assert (answer.status_code, answer.json()) == (404, not_found), (method, where, answer.text)


async def test_many_are_deleted_and_those_that_are_not_there_are_named(client):
    made = [await created(client, from_git()) for _ in range(3)]
    ids = [one["id"] for one in made]
    answer = await client.delete("/v2/deployments", params={"deployment_ids": ids[:2]})
    assert answer.status_code == 200
    assert [one["deleted"] for one in answer.json()["results"]] == [True, True]
    answer = await client.delete("/v2/deployments", params={"deployment_ids": [ids[0], ids[2]]})
    assert answer.status_code == 207
    assert [one["deleted"] for one in answer.json()["results"]] == [False, True]
    answer = await client.delete("/v2/deployments", params={"deployment_ids": ids})
    assert answer.status_code == 404
    assert answer.json()["detail"] == f"Deployment ID {ids[0]} not found."
    assert (await client.delete("/v2/deployments")).status_code == 422
    many = {"deployment_ids": [str(uuid4()) for _ in range(101)]}
    assert (await client.delete("/v2/deployments", params=many)).status_code == 422


async def test_a_key_that_may_only_read_changes_nothing(control):
    key = await control.house.make_key(control.workspace, Scope.DEPLOYMENTS_READ)
    async with control.client(key) as reader:
        assert (await reader.get("/v2/deployments")).status_code == 200
        assert (await reader.post("/v2/deployments", json=from_git())).status_code == 403
