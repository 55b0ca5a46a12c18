"""Revisions of container images, run by a real podman: they keep the rules of the process runtime."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from moorage.control.isolation import find_isolation
from moorage.control.records.orders import Order
from moorage.control.records.states import Source
from moorage.control.runtimes import DeployError
from moorage.control.runtimes.container_body import container_body
from moorage.control.runtimes.processes import Processes
from tests.control.podman import CREDENTIALS, Podman, make_podman, make_registry
from tests.control.worlds import World, make_world
from tests.waiting import until

pytest_plugins = "tests.kernel.fixtures"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="containers are run by root")
IMAGE = "localhost/stub:1"
# Like the stub of processes, but it listens at the port that it is given, as images do.
PROGRAM = """
import os, signal, socket, sys, threading, time
signal.signal(signal.SIGURG, lambda *_: print("it takes no more", flush=True))
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
if os.environ.get("FAILS"):
    print("ImportError: no module named nowhere", file=sys.stderr)
    sys.exit(3)
port = int(os.environ.get("ELSEWHERE") or os.environ["PORT"])
listening = socket.create_server(("0.0.0.0", port))
print("it serves", flush=True)
while os.environ.get("SILENT"):
    listening.accept()
def answer(connection):
    path = connection.recv(65536).split()[1].decode()
    known = {"/env": repr(dict(os.environ)), "/uid": str(os.getuid()), "/started": str(os.stat("/proc/1").st_mtime)}
    if path == "/crash":
        os._exit(1)
    if path == "/eat":
        hoard = b"x" * 400 * 2**20
    if path == "/slow":
        time.sleep(2.5)
    if path == "/status":
        known[path] = open("/proc/self/status").read()
    if path.startswith("/write/"):
        try:
            open(path.removeprefix("/write"), "w").close()
            known[path] = "written"
        except OSError as error:
            known[path] = type(error).__name__
    if path.startswith("/reach/"):
        host, port = path.split("/")[2:]
        try:
            known[path] = socket.create_connection((host, int(port)), timeout=5).recv(100).decode()
        except OSError as error:
            known[path] = type(error).__name__
    body = known.get(path, os.environ["LANGSMITH_HOST_REVISION_ID"])
    head = f"HTTP/1.1 200 OK\\r\\nContent-Length: {len(body.encode())}\\r\\nConnection: close\\r\\n\\r\\n"
    connection.sendall((head + body).encode())
    connection.close()
while True:
    threading.Thread(target=answer, args=(listening.accept()[0],)).start()
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with make_podman() as made:
        made.import_image(IMAGE, PROGRAM)
        yield made


@pytest.fixture
async def world(postgres: object, podman: Podman, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    number = 50_000 + sum(request.node.name.encode()) % 9_000
    async with make_world(postgres, number) as made:
        made.docker_host = podman.host
        yield made


def image_order(world: World, number: int = 1, image: str = IMAGE, **spec: Any) -> Order:
    order = world.order(number, build_of=world.deployment_id, **spec)
    return replace(order, build_of=None, source=Source.EXTERNAL_DOCKER, source_revision_config={"image_uri": image})


async def served(world: World, **spec: Any) -> tuple[Processes, Order]:
    runtime, order = world.platform(), image_order(world, **spec)
    await runtime.prepare(world.row)
    await runtime.start(order, world.secrets)
    await runtime.switch(order)
    return runtime, order


def containers(podman: Podman, world: World) -> list[str]:
    return podman("ps", "--all", "--quiet", "--filter", f"label=moorage.deployment={world.deployment_id}").split()


async def test_an_image_serves_and_the_next_one_takes_its_place(world: World, podman: Podman) -> None:
    runtime, old = await served(world)
    assert await world.get() == str(old.revision_id)
    slow = asyncio.create_task(world.get("/slow"))
    await asyncio.sleep(0.2)
    new = image_order(world, 2)
    await runtime.start(new, {"A": "2"})
    await runtime.switch(new)
    await runtime.stop(old)
    assert await world.get() == str(new.revision_id)
    assert await slow == str(old.revision_id)
    await until(lambda: len(containers(podman, world)) == 1)
    await runtime.remove(world.row)
    assert containers(podman, world) == []
    assert not world.place.root.exists()


@pytest.fixture
async def greeters() -> AsyncIterator[list[int]]:
    """Open ports of this machine that answer."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"greeted")
        writer.close()

    async with (
        await asyncio.start_server(greet, "127.0.0.1") as one,
        await asyncio.start_server(greet, "0.0.0.0") as two,  # noqa: S104 - what containers must not reach
    ):
        yield [server.sockets[0].getsockname()[1] for server in (one, two)]


async def test_a_container_has_what_is_its_own_and_nothing_else(
    world: World, podman: Podman, greeters: list[int]
) -> None:
    open_port, closed_port = greeters
    world.ports, world.secrets = {open_port}, {"SOME_SECRET": "s", "PATH_OF": "mine"}
    _, order = await served(world, memory_limit_mb=256, cpu_limit=0.5)
    seen = await world.get("/env")
    for name, value in {
        "PORT": "8000",
        "SOME_SECRET": "s",
        "LANGSMITH_HOST_REVISION_ID": str(order.revision_id),
    }.items():
        assert f"'{name}': '{value}'" in seen
    assert "moorage_agent_" in seen, "a database of its own"
    assert await world.get("/uid") == str(world.place.uid)
    status = await world.get("/status")
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    assert await world.get("/write/agent.py") == "OSError", "the root is read only"
    assert await world.get(f"/write{world.place.agent_home}/file") == "written"
    assert await world.get("/write/tmp/file") == "written"
    assert await world.get(f"/reach/127.0.0.1/{open_port}") == "greeted"
    assert await world.get(f"/reach/127.0.0.1/{closed_port}") == "ConnectionRefusedError"
    [container] = containers(podman, world)
    gateway = podman("inspect", container, "--format", "{{range .NetworkSettings.Networks}}{{.Gateway}}{{end}}")
    greedy = container_body(image_order(world, cpu_limit=16.0), world.place, {}, {})
    assert greedy["HostConfig"]["NanoCpus"] == (os.cpu_count() or 1) * 10**9, "an engine refuses more than there are"
    if find_isolation().has_firewall:
        assert await world.get(f"/reach/{gateway}/{closed_port}") in {
            "PermissionError",
            "ConnectionRefusedError",
            "OSError",
        }
    assert (
        podman("inspect", container, "--format", "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}}")
        == "268435456 500000000"
    )


async def test_neither_a_killed_platform_nor_a_killed_relay_ends_it(world: World, podman: Podman) -> None:
    _, order = await served(world)
    started, killed = await world.get("/started"), world.process(order)
    killed.kill()
    assert await world.get("/started") == started, "the request waits for the next relay, which finds the container"
    await until(lambda: world.process(order) not in {None, killed})
    relay = world.process(order)
    await world.leave()
    assert await world.get("/started") == started
    second = world.platform()
    await second.reconcile([order], set())
    await until(lambda: second._running and not second._in_hand)
    assert await world.get("/started") == started
    assert world.process(order) == relay
    with pytest.raises(httpx.HTTPError):
        await world.get("/crash")
    await until(lambda: "the container has ended with exit code 1" in world.texts())
    await until(lambda: world.process(order) not in {None, relay})
    assert await world.get("/started") != started
    assert len(containers(podman, world)) == 1


async def test_what_nobody_wants_is_removed(world: World, podman: Podman) -> None:
    _, order = await served(world)
    await world.leave()
    world.process(order).kill()
    assert len(containers(podman, world)) == 1
    second = world.platform()
    await second.reconcile([], {world.number})
    assert len(containers(podman, world)) == 1, "a deployment at which somebody works is left alone"
    await second.reconcile([], set())
    assert containers(podman, world) == []
    assert "stub" in podman("images"), "an image that was made here is its maker's"


@pytest.mark.parametrize(
    ("secrets", "bound_s", "words"),
    [
        ({"FAILS": "1"}, 60, r"ended at its start(.|\n)*no module named nowhere"),
        ({"SILENT": "1"}, 2, r"did not answer /ok within 2 s(.|\n)*it serves"),
        (
            {"ELSEWHERE": "9000"},
            5,
            r"nothing listens at port 8000 of the container, which PORT names; it listens at 9000",
        ),
    ],
    ids=["ends", "never answers", "listens elsewhere"],
)
async def test_an_image_that_does_not_serve_says_why(
    world: World, podman: Podman, secrets: dict[str, str], bound_s: float, words: str
) -> None:
    runtime = world.platform(start_timeout_s=bound_s)
    await runtime.prepare(world.row)
    with pytest.raises(DeployError, match=words):
        await runtime.start(image_order(world), secrets)
    assert containers(podman, world) == []


async def test_an_image_that_cannot_be_had_says_why(world: World, podman: Podman) -> None:
    runtime = world.platform()
    await runtime.prepare(world.row)
    podman.import_empty("localhost/arm:1", "arm64")
    for image, words in {
        "localhost/arm:1": "is for arm64, and this machine is amd64: build it for linux/amd64",
        "localhost/none:1": "There is no image localhost/none:1 on this machine",
    }.items():
        with pytest.raises(DeployError, match=words):
            await runtime.start(image_order(world, image=image), {})
    world.docker_host = None
    with pytest.raises(DeployError, match="MOORAGE_DOCKER_HOST"):
        await world.platform().start(image_order(world), {})


async def test_a_deployment_without_images_is_removed_while_the_engine_is_away(world: World) -> None:
    world.docker_host = "unix:///nowhere.sock"
    runtime = world.platform()
    await runtime.prepare(world.row)
    await runtime.remove(world.row)
    assert not world.place.root.exists()


async def test_too_much_memory_ends_the_container_alone(world: World, podman: Podman) -> None:
    await served(world, memory_limit_mb=64)
    with pytest.raises(httpx.HTTPError):
        await world.get("/eat")
    await until(lambda: any("most likely out of memory: its limit is 64 MB" in text for text in world.texts()))
    assert await world.get()


async def test_an_image_of_a_private_registry_is_pinned_and_goes_with_its_deployment(
    world: World, podman: Podman
) -> None:
    spec = {"image_pull_secrets": [{"name": "REGISTRY"}]}
    with make_registry(podman) as registry:
        image = f"{registry}/team/agent:1"
        push(podman, IMAGE, image)
        runtime = world.platform()
        await runtime.prepare(world.row)
        with pytest.raises(DeployError, match=r"cannot be pulled: .*auth"):
            await runtime.start(image_order(world, image=image), {})
        with pytest.raises(DeployError, match="names 'REGISTRY', and the deployment has no such secret"):
            await runtime.start(image_order(world, image=image, **spec), {})
        secrets = {
            "REGISTRY": json.dumps({"auths": {registry: dict(zip(("username", "password"), CREDENTIALS, strict=True))}})
        }
        first = image_order(world, image=image, **spec)
        pin = await runtime.fetch(first, secrets, world.pulled.append)
        assert pin.startswith(f"{registry}/team/agent@sha256:")
        assert world.pulled[0] == f"Pulling {image}"
        podman.import_image("localhost/other:1", PROGRAM.replace("it serves", "it is another"))
        push(podman, "localhost/other:1", image)
    order = replace(image_order(world, 2, image=image, **spec), image_pin=pin)
    await runtime.start(order, secrets)  # the registry is away by now
    await runtime.switch(order)
    assert "REGISTRY" not in await world.get("/env")
    await until(lambda: "it serves" in world.texts())
    await runtime.remove(world.row)
    assert registry not in podman("images", "--all")


def push(podman: Podman, made: str, image: str) -> None:
    podman("push", "--creds", ":".join(CREDENTIALS), made, image)
