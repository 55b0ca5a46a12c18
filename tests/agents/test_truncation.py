"""`POST /internal/truncate`: served only under `dev`, and closed to web pages."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.serving import make_server

EVERYTHING = dict.fromkeys(("runs", "threads", "assistants", "checkpointer", "store"), True)


async def test_a_server_that_serves_does_not_know_it(http):
    assert (await http.post("/internal/truncate", json=EVERYTHING)).status_code == 404


def test_a_development_server_is_emptied(folder: Path) -> None:
    server = make_server(folder)
    server.start("--development")
    with httpx.Client(base_url=server.url, timeout=30) as http:
        system = http.post("/assistants/count", json={}).json()
        http.post("/assistants", json={"graph_id": "echo"})
        thread = http.post("/threads", json={}).json()["thread_id"]
        http.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "echo", "input": {"text": "x"}})
        http.post(f"/threads/{thread}/runs", json={"assistant_id": "slow", "input": {"seconds": 60}})
        http.put("/store/items", json={"namespace": ["a"], "key": "b", "value": {}})

        foreign = http.post("/internal/truncate", json=EVERYTHING, headers={"Origin": "https://evil.example"})
        assert (foreign.status_code, foreign.json()["detail"]) == (
            403,
            "Web pages may not truncate a development server",
        )
        assert http.post("/internal/truncate", json={"runs": "all"}).status_code == 422
        assert http.post("/internal/truncate", json={}).json() == {"ok": True}
        assert http.get(f"/threads/{thread}").json()["status"] == "busy"

        assert http.post("/internal/truncate", json=EVERYTHING, headers={"Origin": server.url}).json() == {"ok": True}
        assert http.post("/threads/count", json={}).json() == 0
        assert http.post("/assistants/count", json={}).json() == system
        assert http.get("/store/items", params={"namespace": "a", "key": "b"}).json() is None
        assert http.post("/runs/wait", json={"assistant_id": "echo", "input": {"text": "x"}}).json()["text"] == "x!"
        assert http.get("/metrics", params={"format": "json"}).json()["queue"]["n_running"] == 0
    assert server.stop() == 0
