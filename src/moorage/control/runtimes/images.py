"""Container images: fetched, pinned by their digest, run as containers, and removed.

Containers are found by their labels, so unwanted ones are removed even after a crash. An image is fetched with the
credentials of the deployment that names it, even if another deployment's copy is on this machine.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog

from moorage.control.builds import SEARCH_PATH
from moorage.control.limits import ProcessLimits, limits_of
from moorage.control.places import Place
from moorage.control.records.images import NO_IMAGES, is_local, pinned, registry_of, with_tag
from moorage.control.records.orders import Order
from moorage.control.runtimes import DeployError
from moorage.control.runtimes.container_body import container_body, port_of
from moorage.control.runtimes.environment import Surroundings, environment_of_container
from moorage.embedded import firewall
from moorage.embedded.agents import Launch
from moorage.embedded.container import ContainerRun
from moorage.embedded.docker import Docker, DockerError, Image, Say
from moorage.kernel.encoding import decode, encode

log = structlog.get_logger(__name__)

HOME, DEPLOYMENT = "moorage.home", "moorage.deployment"
NUMBER, REVISION = "moorage.number", "moorage.revision"

Login = Callable[[UUID, str | None], Mapping[str, str] | None]


@dataclass(frozen=True)
class ImageRules:
    """Settings of images. `host` is the address of the container engine, or None without one; `ports` are the ports of
    this machine that agents may reach; `kept` is how many images of each deployment are kept for a rollback.
    """

    home: Path
    host: str | None
    ports: frozenset[int]
    kept: int = 5


class Images:
    """The launcher of container images. `login` returns a deployment's credentials for the platform's own registry, and
    None for any other registry.
    """

    engine_limits_processors = True

    def __init__(self, rules: ImageRules, login: Login) -> None:
        self._rules = rules
        self._login = login
        self._home = hashlib.sha256(str(rules.home).encode()).hexdigest()[:12]

    # --- images ---

    async def fetch(self, order: Order, secrets: Mapping[str, str], say: Say) -> str:
        """Fetch the order's image to this machine, and return its pinned reference.

        Raises DeployError when it cannot be fetched, or is not for this machine; UnavailableError when the engine is
        away.
        """
        wanted = order.image_pin or with_tag(order.source_revision_config["image_uri"])
        async with self._docker() as docker:
            found = await docker.image(wanted) if order.image_pin or is_local(wanted) else None
            if found is None:
                own = self._login(order.deployment_id, registry_of(wanted))
                found = await _pull(docker, wanted, own or login_of(order, secrets, wanted), say)
            pin = order.image_pin or pinned(wanted, found.id, found.digests)
            await self._keep(docker, Place(self._rules.home, order.deployment_number), wanted, pin)
            theirs, ours = found.architecture, await docker.architecture()
            if theirs and theirs != ours:
                raise DeployError(
                    f"The image {wanted} is for {theirs}, and this machine is {ours}: build it for linux/{ours}"
                )
            await docker.make_network(*self._network())
        return pin

    async def _keep(self, docker: Docker, place: Place, name: str, pin: str) -> None:
        """Record the image as the newest of its deployment, and remove the oldest ones."""
        note = _note(place, pin)
        names = {name, *(note.read_text().split() if note.exists() else ())}
        await asyncio.to_thread(note.write_text, "\n".join([pin, *sorted(names - {pin})]))
        notes = sorted(place.run.glob("*.image"), key=lambda each: each.stat().st_mtime_ns, reverse=True)
        await self._forget(docker, notes[self._rules.kept :])

    async def _forget(self, docker: Docker, notes: Collection[Path]) -> None:
        for note in notes:
            pin, *names = (await asyncio.to_thread(note.read_text)).split()
            if not is_local(pin) and (found := await docker.image(pin)):  # a local image belongs to whoever made it
                for name in (*names, pin):
                    named = await docker.image(name)
                    if named and named.id == found.id:  # the tag may mean another image by now
                        await docker.remove_image(name)
            note.unlink(missing_ok=True)

    # --- containers ---

    def environment(
        self, order: Order, place: Place, secrets: Mapping[str, str], surroundings: Surroundings
    ) -> dict[str, str]:
        hidden = pull_secrets(order)
        shown = {name: value for name, value in secrets.items() if name not in hidden}
        return environment_of_container(order, place, shown, surroundings, port_of(self._rules.ports))

    def limits(self, order: Order) -> ProcessLimits:
        return limits_of(order.resource_spec, order.workers_max, own_user=True)

    def launch(
        self, order: Order, place: Place, environment: Mapping[str, str], fd: int, socket: Path, shown: Sequence[Path]
    ) -> Launch:
        """Return the command of the process that represents the revision's container: see `embedded/container.py`."""
        assert order.image_pin, "an image is fetched before it is launched"
        assert self._rules.host, "it was fetched by an engine"
        labels = {
            HOME: self._home,
            DEPLOYMENT: str(order.deployment_id),
            NUMBER: str(order.deployment_number),
            REVISION: socket.stem,
        }
        body = container_body(order, place, environment, labels, shown) | {"Image": order.image_pin}
        body["HostConfig"]["NetworkMode"] = self._network()[0]
        run = ContainerRun(
            self._rules.host,
            f"moorage-{self._home}-{place.number}-{socket.stem}",
            body,
            fd,
            port_of(self._rules.ports),
            sorted(self._rules.ports),
        )
        argv = [sys.executable, "-P", "-m", "moorage.embedded.container"]
        return Launch(argv, {"PATH": SEARCH_PATH, "LANG": "C.UTF-8"}, place.run, os.geteuid(), encode(run))

    async def remove_unwanted(self, is_wanted: Callable[[Place, UUID], bool], busy: Container[int]) -> None:
        """Remove containers of this installation whose revisions are not wanted."""
        if self._rules.host is None:
            return
        async with self._docker() as docker:
            for container, labels in (await docker.containers(f"{HOME}={self._home}")).items():
                place = Place(self._rules.home, int(labels[NUMBER]))
                if place.number not in busy and not is_wanted(place, UUID(labels[REVISION])):
                    log.info("a container that nobody wants is removed", container=container[:12])
                    await docker.remove(container)

    async def remove_all(self, deployment_id: UUID, place: Place) -> None:
        """Remove the containers and images of a deployment."""
        notes = list(place.run.glob("*.image"))
        if self._rules.host is None or not notes:  # no image was ever fetched for the deployment, so nothing runs
            return
        async with self._docker() as docker:
            for container in await docker.containers(f"{HOME}={self._home}", f"{DEPLOYMENT}={deployment_id}"):
                await docker.remove(container)
            await self._forget(docker, notes)

    def _network(self) -> tuple[str, dict[str, Any]]:
        """Return the name of our containers' network and the request that creates it. The packet filter recognizes the
        network's bridge by its name.
        """
        bridge = {"com.docker.network.bridge.name": f"{firewall.BRIDGES}{self._home[:9]}"}
        return f"moorage-{self._home}", {"Driver": "bridge", "CheckDuplicate": True, "Options": bridge}

    @asynccontextmanager
    async def _docker(self) -> AsyncIterator[Docker]:
        if self._rules.host is None:
            raise DeployError(NO_IMAGES)
        docker = Docker(self._rules.host)
        try:
            yield docker
        except DockerError as error:
            raise DeployError(f"The container engine refuses: {error}") from None
        finally:
            await docker.close()


async def _pull(docker: Docker, wanted: str, login: Mapping[str, str] | None, say: Say) -> Image:
    if is_local(wanted):
        raise DeployError(f"There is no image {wanted} on this machine: make it here, as with `moorage build`")
    say(f"Pulling {wanted}")
    try:
        await docker.pull(wanted, login, say)
    except DockerError as error:
        raise DeployError(f"The image {wanted} cannot be pulled: {error}") from None
    found = await docker.image(wanted)
    if found is None:
        raise DeployError(f"The image {wanted} was pulled and is gone again")
    return found


def pull_secrets(order: Order) -> list[str]:
    """Return the names of the secrets that hold credentials of registries; the agent does not get them."""
    return [str(each.get("name", "")) for each in order.resource_spec.get("image_pull_secrets") or ()]


def login_of(order: Order, secrets: Mapping[str, str], reference: str) -> dict[str, str] | None:
    """Return the credentials for an image's registry, from the secrets that `image_pull_secrets` names.

    Each secret holds a Docker configuration, as in a Kubernetes secret of the type dockerconfigjson. Raises
    DeployError.
    """
    registry = registry_of(reference)
    for name in pull_secrets(order):
        if name not in secrets:
            raise DeployError(f"resource_spec.image_pull_secrets names {name!r}, and the deployment has no such secret")
        for address, found in _auths(name, secrets[name]).items():
            host = address.removeprefix("https://").removeprefix("http://").partition("/")[0]
            if host == registry or (registry is None and "docker" in host):
                return _login(name, found) | {"serveraddress": host}
    return None


def _auths(name: str, text: str) -> dict[str, Any]:
    try:
        auths = decode(text)["auths"]
        if isinstance(auths, dict) and all(isinstance(each, dict) for each in auths.values()):
            return auths
    except (ValueError, KeyError, TypeError):
        pass
    raise DeployError(
        f'The secret {name} is no configuration of Docker: it must be JSON such as {{"auths": {{"host": {{"auth": …}}}}}}'
    )


def _login(name: str, found: Mapping[str, Any]) -> dict[str, str]:
    if "username" in found and "password" in found:
        return {"username": str(found["username"]), "password": str(found["password"])}
    try:
        username, _, password = base64.b64decode(str(found.get("auth", "")), validate=True).decode().partition(":")
    except ValueError:
        username = password = ""
    if not username or not password:
        raise DeployError(f"The secret {name} has neither a username and a password for the registry, nor auth")
    return {"username": username, "password": password}


def _note(place: Place, pin: str) -> Path:
    return place.run / f"{hashlib.sha256(pin.encode()).hexdigest()[:24]}.image"
