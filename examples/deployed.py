"""From a git repository to a running agent and back, through the API: create, poll, stream, patch, poll, go back, delete.

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

AGENT = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    name: str
    greeting: str

def greet(state: State) -> State:
    return {"greeting": f"Hello, {state['name']}"}

graph = StateGraph(State).add_node("greet", greet).add_edge(START, "greet").compile()
"""
CONFIG = {"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."]}
NAME = "greeter"


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
            print(f"  {time.monotonic() - began_at:5.1f} s  {told}")
        assert "FAILED" not in told, found["status_message"]
        assert time.monotonic() - began_at < 300, "it takes too long"
        time.sleep(0.1)


async def stream(api: httpx.Client, deployment: dict[str, Any]) -> str:
    """With the official SDK, as from any agent server."""
    client = get_client(url=deployment["source_config"]["custom_url"], api_key=api.headers["X-Api-Key"])
    async with client:
        said = ""
        async for part in client.runs.stream(None, "agent", input={"name": "sailor"}, stream_mode="updates"):
            print(f"  {part.event}: {part.data}")
            if part.event == "updates":
                said = part.data["greet"]["greeting"]
    return said


def deploy(api: httpx.Client, repository: Path) -> dict[str, Any]:
    git(repository, "init", "--quiet")
    commit(repository, AGENT)
    print(f"POST /v2/deployments: {NAME} from a git repository")
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
    print(f"It answers at {deployment['source_config']['custom_url']}")
    return dict(deployment)


def patch(api: httpx.Client, deployment: dict[str, Any], repository: Path) -> None:
    commit(repository, AGENT.replace("Hello", "Ahoy"))
    print("PATCH: the next revision, from a new commit")
    path = f"/v2/deployments/{deployment['id']}"
    poll_until_deployed(api, api.patch(path, json={"source_revision_config": {"repo_ref": "main"}}).json())


def go_back(api: httpx.Client, deployment: dict[str, Any]) -> None:
    print("Redeploy of the first revision: the way back")
    path = f"/v2/deployments/{deployment['id']}/revisions/{deployment['latest_revision_id']}/redeploy"
    poll_until_deployed(api, api.post(path).raise_for_status().json())


def show_trace(api: httpx.Client) -> None:
    """Each run of the agent is in the project of its name."""
    for _ in range(100):
        projects = api.get("/api/v1/sessions", params={"name": NAME}).raise_for_status().json()
        if projects:
            body = {"session": [projects[0]["id"]], "is_root": True}
            if len(runs := api.post("/api/v1/runs/query", json=body).raise_for_status().json()["runs"]) >= 3:
                print(f"Its runs, traced in the project {NAME}:")
                for run in runs:
                    print(f"  {run['name']}: {run['status']}, {run['outputs']['greeting']}")
                return
        time.sleep(0.2)
    raise AssertionError("its traces have not come in")


def main(folder: Path) -> None:
    headers = {"X-Api-Key": os.environ["MOORAGE_API_KEY"]}
    with httpx.Client(base_url=os.environ["MOORAGE_URL"], headers=headers, timeout=30) as api:
        deployment = deploy(api, folder)
        assert asyncio.run(stream(api, deployment)) == "Hello, sailor"
        patch(api, deployment, folder)
        assert asyncio.run(stream(api, deployment)) == "Ahoy, sailor"
        go_back(api, deployment)
        assert asyncio.run(stream(api, deployment)) == "Hello, sailor"
        show_trace(api)
        print("DELETE: its processes, database and builds go; its traces stay")
        api.delete(f"/v2/deployments/{deployment['id']}").raise_for_status()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
