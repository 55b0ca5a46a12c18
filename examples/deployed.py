"""From a git repository to a running agent and back, through the API: create, poll, stream, approve, patch, go back, delete.

Run it against a platform that may fetch from this machine (MOORAGE_GIT_PROTOCOLS=https,file):
MOORAGE_URL=<origin> MOORAGE_API_KEY=<key> python examples/deployed.py
"""

import asyncio
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk import get_client

AGENT = (Path(__file__).parent / "harbour.py").read_text()
CONFIG = {"graphs": {"pilot": "./agent.py:graph"}, "dependencies": ["."]}
NAME = "harbour"
MEANING = {
    "AWAITING_DATABASE": "waits for a database of its own",
    "QUEUED": "waits for the revision before it",
    "AWAITING_BUILD": "waits for a builder",
    "BUILDING": "fetches the commit, installs its packages",
    "AWAITING_DEPLOY": "is built",
    "DEPLOYING": "waits until its process answers",
    "DEPLOYED": "gets all requests from here on",
}


def git(repository: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Demo", "-c", "user.email=demo@example.test", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *identity, *arguments], cwd=repository, check=True)


def commit(repository: Path, agent: str) -> None:
    (repository / "agent.py").write_text(agent)
    (repository / "langgraph.json").write_text(json.dumps(CONFIG))
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "The agent")


def poll_until_deployed(api: httpx.Client, deployment: dict[str, Any]) -> None:
    revision, told, began_at = deployment["latest_revision_id"], "", time.monotonic()
    while told != "DEPLOYED":
        found = api.get(f"/v2/deployments/{deployment['id']}/revisions/{revision}").raise_for_status().json()
        if found["status"] != told:
            told = found["status"]
            print(f"  {time.monotonic() - began_at:4.1f} s  {told:<16} {MEANING.get(told, '')}", flush=True)
        assert "FAILED" not in told, found["status_message"]
        assert time.monotonic() - began_at < 300, "it takes too long"
        time.sleep(0.1)


async def converse(api: httpx.Client, deployment: dict[str, Any], ship: str) -> str:
    """With the official SDK, as with any agent server: the agent stops to ask, and goes on with the answer."""
    client = get_client(url=deployment["source_config"]["custom_url"], api_key=api.headers["X-Api-Key"])
    async with client:
        thread = (await client.threads.create())["thread_id"]
        await _follow(client.runs.stream(thread, "pilot", input={"ship": ship}, stream_mode="updates"))
        state = await client.threads.get_state(thread)
        [question] = [each["value"] for task in state["tasks"] for each in task["interrupts"]]
        print(f"  the agent stops and asks: {question}")
        print("  a person answers:         yes")
        await _follow(client.runs.stream(thread, "pilot", command={"resume": "yes"}, stream_mode="updates"))
        return str((await client.threads.get_state(thread))["values"]["answer"])


async def _follow(parts: Any) -> None:
    async for part in parts:
        if part.event == "updates" and "__interrupt__" not in part.data:
            for node, update in part.data.items():
                print(f"  {node}: {', '.join(f'{name}={value!r}' for name, value in update.items())}")


def deploy(api: httpx.Client, repository: Path) -> dict[str, Any]:
    git(repository, "init", "--quiet")
    commit(repository, AGENT)
    print(f"POST /v2/deployments: {NAME}, from git. The first build takes longest.")
    made = api.post(
        "/v2/deployments",
        json={
            "name": NAME,
            "source": "github",
            "source_config": {
                "repo_url": f"file://{repository}/.git",
                "deployment_type": "dev",
                "build_on_push": False,
            },
            "source_revision_config": {"repo_ref": "main", "langgraph_config_path": "langgraph.json"},
            "secrets": [{"name": "GREETING_STYLE", "value": "warm"}],
        },
    )
    deployment = made.raise_for_status().json()
    poll_until_deployed(api, deployment)
    return dict(deployment)


def patch(api: httpx.Client, deployment: dict[str, Any], repository: Path) -> None:
    commit(repository, AGENT.replace("berth 4", "berth 7"))
    print("\nPATCH: the next revision, from a new commit. The old one answers until then.")
    path = f"/v2/deployments/{deployment['id']}"
    poll_until_deployed(api, api.patch(path, json={"source_revision_config": {"repo_ref": "main"}}).json())


def go_back(api: httpx.Client, deployment: dict[str, Any]) -> None:
    print("\nRedeploy of the first revision: the way back, without a build")
    path = f"/v2/deployments/{deployment['id']}/revisions/{deployment['latest_revision_id']}/redeploy"
    poll_until_deployed(api, api.post(path).raise_for_status().json())


def await_traces(api: httpx.Client, count: int) -> None:
    """Each run of the agent is in the project of its name, moments after it has ended."""
    for _ in range(100):
        projects = api.get("/api/v1/sessions", params={"name": NAME}).raise_for_status().json()
        if projects:
            body = {"session": [projects[0]["id"]], "is_root": True}
            runs = api.post("/api/v1/runs/query", json=body).raise_for_status().json()["runs"]
            if len([run for run in runs if run["end_time"]]) >= count:
                return
        time.sleep(0.2)
    raise AssertionError("its traces have not come in")


def main(folder: Path) -> None:
    headers = {"X-Api-Key": os.environ["MOORAGE_API_KEY"]}
    with httpx.Client(base_url=os.environ["MOORAGE_URL"], headers=headers, timeout=30) as api:
        deployment = deploy(api, folder)
        print(f"It answers at {deployment['source_config']['custom_url']}")
        print("The official SDK streams a run of it:")
        assert "berth 4" in asyncio.run(converse(api, deployment, "the Gudrun"))
        patch(api, deployment, folder)
        assert "berth 7" in asyncio.run(converse(api, deployment, "the Wilhelmine"))
        go_back(api, deployment)
        assert "berth 4" in asyncio.run(converse(api, deployment, "the Toni"))
        await_traces(api, 6)
        print("\nDELETE: its processes, database and builds go; its traces stay")
        api.delete(f"/v2/deployments/{deployment['id']}").raise_for_status()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        # As root the platform runs git as a user of the deployment, who has to see the repository.
        Path(name).chmod(0o755)
        main(Path(name))
