"""The long-term store while its server is killed and its embedding function fails: acknowledged items are kept and
found.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from tests.faults.houses import PROJECT, RANDOM, House, house_in
from tests.faults.reports import Report, progress
from tests.serving import Server

# The file `mode` says what the embedding function does next. Each text of one word has its own vector.
EMBEDDING = """
import asyncio, hashlib
from pathlib import Path

MODE = Path(__file__).with_name("mode")

async def embed(texts):
    mode = MODE.read_text()
    if mode == "raises":
        raise RuntimeError("the password is hunter2")
    if mode == "hangs":
        await asyncio.sleep(3600)
    size = 7 if mode == "other dimensions" else 8
    return [[byte - 127.5 for byte in hashlib.sha256(text.encode()).digest()[:size]] for text in texts]
"""
MODES = ("raises", "other dimensions", "hangs")
# An invalid namespace, and the message of its refusal.
NAMESPACES: list[tuple[Any, str]] = [
    (["a.b"], "period"),
    (["nul\0"], ""),
    (["", "a"], ""),
    (["label"] * 1000, ""),
    (["langgraph", "a"], ""),
    (["x" * 3000], ""),
    ([], ""),
]
ITEMS = 5


class User:
    """Writes items of its own namespace, one at a time, and remembers which values each may have."""

    def __init__(self, server: Server, number: int) -> None:
        self.namespace = ["users", str(number)]
        self.possible: dict[str, set[str | None]] = {str(n): {None} for n in range(ITEMS)}
        self.wrongs: list[str] = []
        self.acknowledged = self.refused = self.cut = 0
        self._server = server
        self._done = False

    async def work(self) -> None:
        while not self._done:
            await self._write()
            await asyncio.sleep(RANDOM.random() * 0.02)

    def stop(self) -> None:
        self._done = True

    async def _write(self) -> None:
        key, text = RANDOM.choice(list(self.possible)), f"text-{RANDOM.getrandbits(64)}"
        wanted = None if RANDOM.random() < 0.2 else text
        body: dict[str, Any] = {"namespace": self.namespace, "key": key}
        method = "DELETE" if wanted is None else "PUT"
        before = self.possible[key]
        self.possible[key] = before | {wanted}  # until the outcome is known, either value
        try:
            async with httpx.AsyncClient(base_url=self._server.url, timeout=90) as http:
                put = {} if wanted is None else {"value": {"text": text}}
                answer = await http.request(method, "/store/items", json=body | put)
        except httpx.TransportError:
            self.cut += 1
            await asyncio.sleep(0.1)
            return
        if answer.is_success:
            self.possible[key] = {wanted}
            self.acknowledged += 1
            return
        self.refused += 1
        if answer.status_code == 502:
            self.possible[key] = before  # nothing of it was stored
        elif answer.status_code != 503:
            self.wrongs.append(f"{method} answers {answer.status_code}: {answer.text[:200]}")
        if "hunter2" in answer.text:
            self.wrongs.append("a caller reads what the embedding function said")


async def store(folder: Path, *, times: int = 30, users: int = 8) -> Report:
    report = Report("store")
    mode = _make_project(folder)
    with house_in(folder, config=folder / "langgraph.json") as house:
        server = house.serve()
        everyone = [User(server, number) for number in range(users)]
        tasks = [asyncio.create_task(user.work()) for user in everyone]
        for number in range(times):
            await asyncio.sleep(0.5 + RANDOM.random())
            mode.write_text(MODES[number % len(MODES)])
            await asyncio.sleep(0.5 + RANDOM.random())
            mode.write_text("works")
            await asyncio.sleep(RANDOM.random())
            server.kill()
            await asyncio.to_thread(server.start)
            progress(f"kill {number + 1} of {times}: {sum(user.acknowledged for user in everyone)} writes acknowledged")
        await asyncio.sleep(0.5)
        for user in everyone:
            user.stop()
        await asyncio.gather(*tasks)
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            for user in everyone:
                report.add(user.wrongs)
                report.add(await _judge(http, user))
            report.add(await _judge_namespaces(http))
        report.add(_judge_vectors(house))
        report.tell(kills=times, users=users, acknowledged=sum(user.acknowledged for user in everyone))
        report.tell(cut_off=sum(user.cut for user in everyone), refused=sum(user.refused for user in everyone))
        report.check(any(user.refused for user in everyone), "no write met an embedding function that fails")
    return report


def _make_project(folder: Path) -> Path:
    (folder / "embedding.py").write_text(EMBEDDING)
    index = {"embed": "./embedding.py:embed", "dims": 8, "fields": ["text"]}
    graphs = {"steps": f"{PROJECT.parent}/nasty.py:steps"}
    config = {"dependencies": ["."], "graphs": graphs, "store": {"index": index}}
    (folder / "langgraph.json").write_text(json.dumps(config))
    (folder / "mode").write_text("works")
    return folder / "mode"


async def _judge(http: httpx.AsyncClient, user: User) -> list[str]:
    wrongs = []
    answer = await http.post("/store/items/search", json={"namespace_prefix": user.namespace, "limit": 100})
    found = {item["key"]: item["value"]["text"] for item in answer.json()["items"]}
    for key, possible in user.possible.items():
        text = found.get(key)
        if text not in possible:
            wrongs.append(f"item {key} of {user.namespace} is {text}, and may be {possible}")
        if text is not None:
            near = {"namespace_prefix": user.namespace, "query": text, "limit": 1}
            [first] = (await http.post("/store/items/search", json=near)).json()["items"]
            if first["key"] != key or first["score"] < 0.999:
                wrongs.append(f"item {key} of {user.namespace} is not found by its text")
    return wrongs


async def _judge_namespaces(http: httpx.AsyncClient) -> list[str]:
    wrongs = []
    for namespace, words in NAMESPACES:
        item = {"namespace": namespace, "key": "k", "value": {"text": "x"}}
        for method, path, body in (
            ("PUT", "/store/items", item),
            ("DELETE", "/store/items", {"namespace": namespace, "key": "k"}),
            ("POST", "/store/items/search", {"namespace_prefix": namespace}),
            ("POST", "/store/namespaces", {"prefix": namespace}),
        ):
            status, text = (answer := await http.request(method, path, json=body)).status_code, answer.text
            good = {400, 422} if method == "PUT" else {200, 204, 400, 422}
            if status not in good or (status == 400 and words not in text):
                wrongs.append(f"{method} {path} of {str(namespace)[:40]} answers {status}: {text[:200]}")
    return wrongs


def _judge_vectors(house: House) -> list[str]:
    """Return an error for each item that does not have exactly one vector."""
    sql = """SELECT i.key, count(v.field) AS n FROM items i LEFT JOIN item_vectors v USING (namespace, key)
        GROUP BY i.namespace, i.key HAVING count(v.field) <> 1"""
    return [f"item {row['key']} has {row['n']} vectors" for row in house.query(sql)]
