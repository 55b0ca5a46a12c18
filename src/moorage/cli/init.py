"""`moorage init`: a small agent that can be deployed, with CI files that deploy it on each push."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moorage.cli.output import client_command, note
from moorage.kernel.errors import ConflictError

_AGENT = '''"""An agent that repeats your message. Let `answer` call a model instead."""

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph


def answer(state: MessagesState) -> MessagesState:
    return {"messages": [AIMessage(f"You said: {state['messages'][-1].text}")]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
'''
_CONFIG = """{
  "dependencies": ["."],
  "graphs": {"agent": "./agent.py:graph"}
}
"""
# A local package with one module: installers need only its name and version.
_PROJECT = """[project]
name = "agent"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["langgraph"]

[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
py-modules = ["agent"]
"""
# Gitea's and Forgejo's runners read the format of GitHub Actions.
_ACTIONS = """name: deploy
on:
  push:
    branches: [main]
jobs:
  deploy:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install moorage
      - run: moorage deploy . --name agent
        env:
          MOORAGE_URL: ${{ secrets.MOORAGE_URL }}
          MOORAGE_API_KEY: ${{ secrets.MOORAGE_API_KEY }}
"""
_GITLAB = """deploy:
  image: python:3.12
  rules:
    - if: $CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH
  script:
    - pip install moorage
    - moorage deploy . --name agent
"""
FILES = {
    "agent.py": _AGENT,
    "langgraph.json": _CONFIG,
    "pyproject.toml": _PROJECT,
    ".github/workflows/deploy.yml": _ACTIONS,
    ".gitea/workflows/deploy.yml": _ACTIONS,
    ".gitlab-ci.yml": _GITLAB,
}


@client_command
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write to. It is created if it is missing.")] = Path(),
) -> None:
    """Write a small agent, and CI files for GitHub, GitLab and Gitea that deploy it. Never overwrites a file."""
    if there := [name for name in FILES if (folder / name).exists()]:
        raise ConflictError(
            f"{folder / there[0]} exists already, so nothing was written; choose another folder: `moorage init FOLDER`"
        )
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        typer.echo(path)
    note("Add MOORAGE_URL and MOORAGE_API_KEY to the secrets of your CI, or deploy from here with `moorage deploy`.")
