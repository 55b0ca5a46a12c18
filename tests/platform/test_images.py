"""From a langgraph.json to an image to an agent, through `moorage build` and a real `moorage up` that runs containers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.control.podman import Podman, make_podman
from tests.platform.callers import Callers, source, version
from tests.platform.guides import paste, snippet
from tests.platform.serving import Platform, make_folder, make_platform
from tests.platform.test_deployments import until_ended
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="containers are run by root"),
]
BASE = "localhost/base:1"


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with make_podman() as made:
        made.import_base(BASE)
        yield made


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with make_folder() as made:
        yield made


@pytest.fixture(scope="module")
def platform(folder: Path, podman: Podman) -> Iterator[Platform]:
    settings = {"MOORAGE_DOCKER_HOST": podman.host, "MOORAGE_AGENT_START_SECONDS": "240"}
    with make_platform(folder / "home", **settings) as running:
        yield running


@pytest.fixture(scope="module")
def api(platform: Platform) -> Iterator[httpx.Client]:
    with platform.client() as client:
        yield client


def build(platform: Platform, podman: Podman, folder: Path, number: int) -> str:
    """Build an image of a project whose agent answers with this version."""
    project = folder / f"project-{number}"
    project.mkdir()
    config = {"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."], "env": ".env"}
    (project / "langgraph.json").write_text(json.dumps(config | {"dockerfile_lines": ["ENV FROM_LINES=1"]}))
    (project / "agent.py").write_text(source(number))
    (project / ".env").write_text("SOME_SECRET=not-in-an-image\n")
    tag = f"localhost/agent:{number}"
    options = f"-c {project}/langgraph.json --base-image {BASE} --no-pull --docker-host {podman.host}"
    build_it = snippet("deployments.md", "langgraph deploy").splitlines()[0]
    assert paste(build_it, {"-t agent:1": f"-t {tag} {options}"}, platform, folder).splitlines()[0] == tag
    return tag


def test_a_project_becomes_an_image_that_is_deployed_switched_and_taken_back(
    platform: Platform, api: httpx.Client, podman: Podman, folder: Path
) -> None:
    first, second = (build(platform, podman, folder, number) for number in (1, 2))
    body: dict[str, Any] = {"name": "agent", "source": "external_docker", "source_config": {}, "secrets": []}
    made = api.post("/v2/deployments", json=body | {"source_revision_config": {"image_uri": first}}).json()
    assert ended(api, made)["status"] == "DEPLOYED"
    url = made["source_config"]["custom_url"]
    assert version(api, url) == 1
    assert httpx.post(f"{url}/threads", json={}).status_code == 401, "it asks the platform about keys"
    wait_until(lambda: "agent" in {project["name"] for project in api.get("/api/v1/sessions").json()})
    with Callers(platform, url).at_work() as callers:
        change = {"source_revision_config": {"image_uri": second}}
        patched = api.patch(f"/v2/deployments/{made['id']}", json=change).json()
        assert ended(api, patched)["status"] == "DEPLOYED"
        assert version(api, url) == 2
        back = api.post(f"/v2/deployments/{made['id']}/revisions/{made['latest_revision_id']}/redeploy").json()
        assert ended(api, back)["status"] == "DEPLOYED"
        assert version(api, url) == 1
    assert callers.failures == []
    log = api.get(f"/v2/deployments/{made['id']}/revisions/{made['latest_revision_id']}/logs", params={"type": "build"})
    assert "The image is sha256:" in log.text
    assert api.delete(f"/v2/deployments/{made['id']}").status_code == 204
    wait_until(lambda: not podman("ps", "--all", "--quiet"))


# Podman in place of Docker: its login has another option, and after a push its RepoDigests lack the registry's digest.
DOCKER = """#!/bin/sh
echo "$@" >> {folder}/docker.log
if [ "$1" = --config ]; then REGISTRY_AUTH_FILE="$2/config.json"; export REGISTRY_AUTH_FILE; shift 2; fi
case "$*" in
push*) exec podman push --digestfile {folder}/digest "$2" ;;
*RepoDigests*) echo "[\\"${{5%:*}}@$(cat {folder}/digest)\\"]" ;;
*) exec podman "$@" ;;
esac
"""


def test_langgraph_deploy_pushes_an_image_here(
    platform: Platform, api: httpx.Client, podman: Podman, folder: Path
) -> None:
    """Runs `langgraph deploy --image` of PyPI's `langgraph-cli`, unmodified, twice: for a deployment and its next
    revision.
    """
    shims = folder / "shims"
    shims.mkdir()
    (shims / "docker").write_text(DOCKER.format(folder=folder))
    (shims / "docker").chmod(0o755)
    for number in (3, 4):
        tag = build(platform, podman, folder, number)
        deploy_it = snippet("deployments.md", "langgraph deploy").splitlines()[1]
        stands_for = {"--image agent:1": f"--image {tag}", "--name agent": "--name pushed --no-input"}
        paste(
            deploy_it,
            stands_for,
            platform,
            folder / f"project-{number}",
            **podman.environment
            | {
                "PATH": f"{shims}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "LANGGRAPH_HOST_URL": platform.url,
                "LANGSMITH_API_KEY": platform.key,
                "LANGGRAPH_CLI_NO_ANALYTICS": "1",
                "DOCKER_HOST": podman.host,
            },
        )
        assert version(api, f"{platform.url}/d/pushed") == number
    [made] = api.get("/v2/deployments", params={"name": "pushed"}).json()["resources"]
    revisions = api.get(f"/v2/deployments/{made['id']}/revisions").json()["resources"]
    images = [revision["source_revision_config"]["image_uri"] for revision in revisions]
    assert all(f"/images/{made['id']}@sha256:" in image for image in images), images
    assert "login -u moorage --password-stdin" in (folder / "docker.log").read_text()
    log = api.get(f"/v2/deployments/{made['id']}/revisions/{revisions[0]['id']}/logs", params={"type": "build"})
    assert f"Pulling {images[0]}" in log.text, "the engine fetches it from here"
    assert api.delete(f"/v2/deployments/{made['id']}").status_code == 204
    wait_until(lambda: not podman("ps", "--all", "--quiet"))
    wait_until(lambda: not list((folder / "home" / "bucket" / "images").rglob("*/*")))


def ended(api: httpx.Client, deployment: dict[str, Any]) -> dict[str, Any]:
    return until_ended(api, deployment["id"], deployment["latest_revision_id"])
