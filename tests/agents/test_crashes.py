"""Real servers that are killed at bad moments: accepted runs are completed, once and in order."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row

from moorage.embedded.postgres import EmbeddedPostgres
from tests.kernel.databases import end_postmaster
from tests.serving import Server, make_server
from tests.waiting import wait_until

LEASE_S = 2
BOUND_S = 15.0


class House:
    """A home with its servers and the content of its database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._servers: list[Server] = []

    def serve(self, **environment: str) -> Server:
        """Start another server on the same home."""
        server = make_server(self.folder, MOORAGE_LEASE_SECONDS=str(LEASE_S), **environment)
        server.start()
        self._servers.append(server)
        return server

    def kill_the_database(self) -> None:
        end_postmaster(self.folder / "home", signal.SIGKILL)

    def runs(self, thread: str = "") -> list[dict[str, Any]]:
        """Return the runs of all threads or of one, the oldest first."""
        engine = EmbeddedPostgres(self.folder / "home")
        try:
            with psycopg.connect(engine.start(), row_factory=dict_row) as connection:
                rows = connection.execute("SELECT * FROM runs ORDER BY run_id").fetchall()
        finally:
            engine.stop()
        return [row for row in rows if not thread or thread.endswith(str(row["thread_id"]))]

    def ended(self, number: int) -> list[dict[str, Any]]:
        """Wait until this many runs have ended, and return all runs."""

        def so_many() -> list[dict[str, Any]] | None:
            found = [run for run in self.runs() if run["status"] not in {"pending", "running"}]
            return found if len(found) == number else None

        return wait_until(so_many, BOUND_S)

    def counted(self, lines: str = "lines") -> int:
        file = self.folder / lines
        return len(file.read_text().splitlines()) if file.exists() else 0

    def stop(self) -> None:
        for server in self._servers:
            if server.process is not None and server.process.poll() is None:
                server.stop()
        EmbeddedPostgres(self.folder / "home").stop()


@pytest.fixture
def house(folder: Path) -> Iterator[House]:
    house = House(folder)
    yield house
    house.stop()


class Frame(NamedTuple):
    event: str
    data: Any
    id: str


class Client:
    """A plain HTTP client of one server."""

    def __init__(self, server: Server) -> None:
        self._http = httpx.Client(base_url=server.url, timeout=30)
        self.close = self._http.close

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self._http.post(path, json=body or {})
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    def get(self, path: str) -> Any:
        answer = self._http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def thread(self) -> str:
        return f"/threads/{self.post('/threads')['thread_id']}"

    def run(self, thread: str, graph: str = "slow", **more: Any) -> str:
        """Return the path of the accepted run."""
        return f"{thread}/runs/{self.post(f'{thread}/runs', {'assistant_id': graph, **more})['run_id']}"

    @contextmanager
    def frames(self, method: str, path: str, **more: Any) -> Iterator[Iterator[Frame]]:
        with self._http.stream(method, path, **more) as answer:
            assert answer.status_code == 200
            yield _frames(answer.iter_lines())

    def all_frames(self, path: str, **more: Any) -> list[Frame]:
        with self.frames("GET", path, **more) as frames:
            return list(frames)


def talking_to(server: Server) -> closing[Client]:
    return closing(Client(server))


def _frames(lines: Iterator[str]) -> Iterator[Frame]:
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield Frame(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
            fields = {}


def slow_input(house: House, seconds: float, lines: str = "lines") -> dict[str, Any]:
    return {"input": {"file": str(house.folder / lines), "seconds": seconds, "items": []}}


def wait_until_half_way(house: House, lines: str = "lines") -> None:
    """Wait until the first node of `slow` has run, and its writes are saved."""
    wait_until(lambda: house.counted(lines), BOUND_S)
    time.sleep(0.3)


# --- kill -9 of the server --------------------------------------------------------------------------------------------


@dataclass
class Killed:
    """Work that was under way on a server when it was killed, and what was seen before and after. The server is up
    again.
    """

    house: House
    server: Server
    run: str
    joined: list[Frame]
    resumable_thread: str
    seen: list[Frame]
    busy_thread: str


@pytest.fixture(scope="module")
def killed() -> Iterator[Killed]:
    with TemporaryDirectory(prefix="moorage-test-") as name:
        Path(name).chmod(0o755)
        house = House(Path(name))
        with talking_to(server := house.serve()) as client:
            run = client.run(client.thread(), **slow_input(house, 6, "run"))
            busy = client.thread()
            client.run(busy, **slow_input(house, 3, "busy"))
            for _ in range(3):
                client.run(busy, "echo", input={"text": ""})
            client.run(client.thread(), "echo", input={"text": ""}, after_seconds=1)
            resumable = client.thread()
            more = {"stream_mode": ["updates"], "stream_resumable": True, **slow_input(house, 3, "resumable")}
            with client.frames("POST", f"{resumable}/runs/stream", json={"assistant_id": "slow", **more}) as frames:
                seen = [next(frames), next(frames)]
                for lines in ("run", "busy", "resumable"):
                    wait_until_half_way(house, lines)
                server.kill()
        server.start()
        with talking_to(server) as client:
            joined = client.all_frames(f"{run}/stream")
        yield Killed(house, server, run, joined, resumable, seen, busy)
        house.stop()


def test_a_killed_run_goes_on_from_its_last_checkpoint_and_who_comes_back_sees_its_end(killed: Killed):
    assert killed.joined[-1].event == "values"
    assert killed.joined[-1].data["items"] == ["counted", "slept", "echo"]
    thread = killed.run.partition("/runs/")[0]
    with talking_to(killed.server) as client:
        assert client.get(killed.run)["status"] == "success"
        assert client.get(f"{killed.run}/join")["items"] == ["counted", "slept", "echo"]
        assert client.get(f"{thread}/state")["next"] == []
        assert client.get(thread)["status"] == "idle"
    [row] = killed.house.runs(thread)
    assert row["attempt"] == 2
    assert killed.house.counted("run") == 1


def test_a_resumable_stream_goes_on_after_the_last_frame_that_was_seen(killed: Killed):
    seen = killed.seen
    run = f"{killed.resumable_thread}/runs/{seen[0].data['run_id']}"
    with talking_to(killed.server) as client:
        rest = client.all_frames(f"{run}/stream", headers={"Last-Event-ID": seen[-1].id})
        assert [list(frame.data) for frame in [*seen, *rest] if frame.event == "updates"] == [
            ["count"],
            ["sleep"],
            ["last"],
        ]
        # The whole run once more, from the beginning.
        assert client.all_frames(f"{run}/stream", headers={"Last-Event-ID": "-1"}) == [*seen, *rest]
    positions = [tuple(map(int, frame.id.split("-"))) for frame in [*seen, *rest]]
    assert positions == sorted(set(positions))
    assert [frame.data["attempt"] for frame in [*seen, *rest] if frame.event == "metadata"] == [1, 2]
    assert killed.house.counted("resumable") == 1


def test_runs_that_waited_when_the_server_was_killed_all_end_in_order(killed: Killed):
    wait_until(lambda: all(run["status"] == "success" for run in killed.house.runs()), BOUND_S)
    runs = killed.house.runs(killed.busy_thread)
    assert [run["attempt"] for run in runs] == [2, 1, 1, 1]
    ends = [run["updated_at"] for run in runs]
    assert ends == sorted(ends)
    with talking_to(killed.server) as client:
        items = client.get(f"{killed.busy_thread}/state")["values"]["items"]
        assert items == ["counted", "slept", "echo", "echo", "echo", "echo"]


def test_a_run_that_is_lost_for_the_last_time_ends_as_an_error(house: House):
    with talking_to(server := house.serve(BG_JOB_MAX_RETRIES="1")) as client:
        thread = client.thread()
        run = client.run(thread, **slow_input(house, 600))
    server.kill()
    server.start()
    [row] = house.ended(1)
    assert (row["status"], row["attempt"]) == ("error", 1)
    with talking_to(server) as client:
        assert client.get(run)["status"] == "error"
        assert client.get(f"{run}/join")["__error__"]["error"] == "WorkerLost"
        assert client.get(thread)["status"] == "error"
        assert client.post(f"{thread}/runs/wait", {"assistant_id": "echo", "input": {"text": ""}})["text"] == "!"


# --- an orderly stop --------------------------------------------------------------------------------------------------


def test_a_stopped_server_hands_its_runs_back_and_the_next_finishes_them_without_using_an_attempt(house: House):
    with talking_to(server := house.serve()) as client:
        thread = client.thread()
        client.run(thread, **slow_input(house, 2))
        client.run(thread, "echo", input={"text": ""})
        wait_until_half_way(house)
    stopping = time.monotonic()
    assert server.stop(signal.SIGTERM) == 0
    assert time.monotonic() - stopping < 10
    assert [(run["status"], run["attempt"], run["worker"]) for run in house.runs()] == [
        ("pending", 0, None),
        ("pending", 0, None),
    ]
    server.start()
    runs = house.ended(2)
    assert [(run["status"], run["attempt"]) for run in runs] == [("success", 1), ("success", 1)]
    assert house.counted() == 1


# --- the database goes away -------------------------------------------------------------------------------------------


class Load(threading.Thread):
    """A client that sends requests until it is told to stop, and keeps the answers."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.stopped = threading.Event()
        self.answers: list[tuple[float, str]] = []
        self._server = server

    def run(self) -> None:
        with httpx.Client(base_url=self._server.url, timeout=30) as http:
            while not self.stopped.is_set():
                self.answers.append((time.monotonic(), self._ask(http)))
                time.sleep(0.02)

    def _ask(self, http: httpx.Client) -> str:
        try:
            thread = http.post("/threads", json={})
            if thread.status_code != 200:
                return _told(thread)
            body = {"assistant_id": "echo", "input": {"text": "", "items": []}}
            return _told(http.post(f"/threads/{thread.json()['thread_id']}/runs/wait", json=body))
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"


def _told(answer: httpx.Response) -> str:
    if answer.status_code == 503 and answer.headers.get("retry-after"):
        return "try again"
    if answer.status_code == 200 and ("thread_id" in answer.json() or answer.json().get("text") == "!"):
        return "done"
    return f"{answer.status_code} {answer.text}"


def test_a_server_outlives_the_death_of_its_database_under_load(house: House):
    server = house.serve()
    load = [Load(server) for _ in range(4)]
    for client in load:
        client.start()
    try:
        wait_until(lambda: sum(len(client.answers) for client in load) >= 20, BOUND_S)
        house.kill_the_database()
        time.sleep(0.5)
        second = EmbeddedPostgres(house.folder / "home")
        second.start()  # either this test or the server brings the database up again, whichever comes first
        back = time.monotonic()
        wait_until(
            lambda: all(any(at > back and told == "done" for at, told in client.answers) for client in load), BOUND_S
        )
        time.sleep(0.5)
    finally:
        for client in load:
            client.stopped.set()
        for client in load:
            client.join()
    second.stop()
    told = Counter(told for client in load for _, told in client.answers)
    assert told.keys() <= {"done", "try again"}, told
    # Runs that were accepted before the kill have ended too, though nobody waits for them any more.
    wait_until(lambda: all(run["status"] == "success" for run in house.runs()), BOUND_S)
    assert server.process is not None
    assert server.process.poll() is None


# --- two servers on one home ------------------------------------------------------------------------------------------


def test_what_a_full_server_cannot_start_and_a_killed_one_cannot_finish_is_done_by_the_other(house: House):
    full = house.serve(N_JOBS_PER_WORKER="1")
    with talking_to(full) as client, talking_to(house.serve()) as other:
        thread = client.thread()
        run = client.run(thread, **slow_input(house, 3))
        wait_until_half_way(house)
        body = {"assistant_id": "echo", "input": {"text": ""}}
        assert client.post(f"{client.thread()}/runs/wait", body)["text"] == "!"
        assert client.get(run)["status"] == "running"
        full.kill()
        assert other.get(f"{run}/join")["items"] == ["counted", "slept", "echo"]
        assert other.get(run)["status"] == "success"
    assert house.counted() == 1
    assert [row["attempt"] for row in house.runs()] == [2, 1]
