"""Callers of a deployed agent who never let up: requests one after another, and streams that are open all the time.

The agent is the one of `AGENT`: it streams its steps, and answers with the version that its source says and the number of
its process.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.platform.serving import Platform

AGENT = """
import asyncio
import os
from typing import TypedDict
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    wait_s: float
    steps: int
    version: int
    pid: int

async def answer(state: State) -> State:
    tell = get_stream_writer()
    for step in range(state.get("steps", 0)):
        tell(step)
        await asyncio.sleep(0.1)
    await asyncio.sleep(state.get("wait_s", 0))
    return {"pid": os.getpid(), "version": 1}

builder = StateGraph(State)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
graph = builder.compile()
"""
_STEPS = 40


def source(version: int) -> str:
    return AGENT.replace('"version": 1', f'"version": {version}')


def version(client: httpx.Client, url: str, wait_s: float = 0, **options: Any) -> int:
    """Return the version in the answer of the revision."""
    body = {"assistant_id": "agent", "input": {"wait_s": wait_s}}
    answer = client.post(f"{url}/runs/wait", json=body, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()["version"]


@dataclass
class Callers:
    """The callers' results. `failures` describes each answer and stream that was not complete."""

    platform: Platform
    url: str
    answers: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)  # versions of the answers that ended as they should
    failures: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def at_work(self, asking: int = 2, streaming: int = 2) -> Iterator[Callers]:
        threads = [threading.Thread(target=self._repeat, args=(self._ask,)) for _ in range(asking)]
        threads += [threading.Thread(target=self._repeat, args=(self._stream,)) for _ in range(streaming)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _repeat(self, call: Any) -> None:
        with self.platform.client() as client:
            while not self._over.is_set():
                try:
                    call(client)
                except (httpx.HTTPError, AssertionError, KeyError, ValueError) as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                    time.sleep(0.2)

    def _ask(self, client: httpx.Client) -> None:
        self.answers.append(version(client, self.url, wait_s=0.1))

    def _stream(self, client: httpx.Client) -> None:
        body = {"assistant_id": "agent", "input": {"steps": _STEPS}, "stream_mode": ["custom", "values"]}
        events: list[tuple[str, Any]] = []
        with client.stream("POST", f"{self.url}/runs/stream", json=body, timeout=120) as answer:
            assert answer.status_code == 200, answer.read()
            name = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    events.append((name, json.loads(line.removeprefix("data: "))))
        steps = [data for name, data in events if name == "custom"]
        assert steps == list(range(_STEPS)), f"a stream had {len(steps)} of {_STEPS} steps"
        self.streams.append([data for name, data in events if name == "values"][-1]["version"])
