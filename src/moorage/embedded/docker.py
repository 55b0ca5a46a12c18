"""Client of Docker's HTTP API, which podman serves too, on a Unix socket: the calls for images and containers of
agents.

Source: Docker Engine API 1.41. Every call names its object, so it can be repeated.
"""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import MoorageError, UnavailableError

DEFAULT_HOST = "unix:///var/run/docker.sock"
_SCHEME = "unix://"
_SOCKET_PATH_BYTES_MAX = 107
_CONNECT_S, _ANSWER_S = 5.0, 60.0
_STOP_MORE_S = 30.0
_FRAME_BYTES = 8
# Architectures of this machine, by the names in images and in the engine's answers.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

Say = Callable[[str], None]


class DockerError(MoorageError):
    """The container engine refuses a request. The text is the engine's own, without paths of this machine."""

    status = 400
    code = "docker_error"

    def __init__(self, text: str, answered: int = 0) -> None:
        super().__init__(text)
        self.answered = answered


@dataclass(frozen=True)
class Image:
    """An image on this machine. `digests` are references `repository@sha256:…` of the registries that have it."""

    id: str
    digests: tuple[str, ...]
    architecture: str


@dataclass(frozen=True)
class Container:
    """The state of a container. `pid` is its first process on this machine, 0 when it does not run."""

    id: str
    pid: int
    exit_code: int
    out_of_memory: bool
    labels: Mapping[str, str]

    @property
    def is_running(self) -> bool:
        return self.pid > 0


def socket_of(host: str) -> Path:
    """Return the socket of a host such as unix:///var/run/docker.sock. Raises DockerError for any other kind of
    host.
    """
    path = host.removeprefix(_SCHEME)
    if not host.startswith(_SCHEME + "/") or len(os.fsencode(path)) > _SOCKET_PATH_BYTES_MAX:
        raise DockerError(f"{host!r} is no Unix socket of a container engine: write {DEFAULT_HOST}")
    return Path(path)


class Docker:
    """A client of one engine. Raises UnavailableError when the engine does not answer."""

    def __init__(self, host: str) -> None:
        transport = httpx.AsyncHTTPTransport(uds=str(socket_of(host)), verify=False)
        timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://docker", timeout=timeout)

    async def close(self) -> None:
        await self._client.aclose()

    async def architecture(self) -> str:
        """Return the architecture of images for this machine, such as amd64."""
        found = str((await self._json("GET", "/version")).get("Arch"))
        return _ARCHITECTURES.get(found, found)

    # --- images ---

    async def pull(self, reference: str, login: Mapping[str, str] | None, say: Say) -> None:
        """Fetch an image from its registry, even if this machine has one of that name.

        Raises DockerError with the registry's reason.
        """
        headers = {"X-Registry-Auth": base64.urlsafe_b64encode(encode(login)).decode()} if login else {}
        query = {"fromImage": reference}
        async with self._stream("POST", "/images/create", headers, params=query, timeout=None) as answer:
            async for line in answer.aiter_lines():
                _tell_progress(line, say)

    async def build(self, context: AsyncIterator[bytes], query: Mapping[str, str], say: Say) -> None:
        """Build an image from a tar archive with a Dockerfile. Raises DockerError with the failed step."""
        headers = {"Content-Type": "application/x-tar"}
        async with self._stream("POST", "/build", headers, params=query, content=context, timeout=None) as answer:
            async for line in answer.aiter_lines():
                _tell_progress(line, say)

    async def image(self, reference: str) -> Image | None:
        """Return the image of that name, digest or id; None when it is not on this machine."""
        try:
            found = await self._json("GET", f"/images/{quote(reference, safe='/:@')}/json")
        except DockerError as error:
            if error.answered == httpx.codes.NOT_FOUND:
                return None
            raise
        return Image(found["Id"], tuple(found.get("RepoDigests") or ()), found.get("Architecture") or "")

    async def remove_image(self, reference: str) -> None:
        """Remove the image. Does nothing if it is not on this machine, or if a container needs it."""
        await self._maybe("DELETE", f"/images/{quote(reference, safe='/:@')}", allowed=(404, 409, 500))

    # --- containers ---

    async def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Create a container without starting it, and return its id. Raises DockerError when the name is taken."""
        made = await self._json("POST", "/containers/create", params={"name": name}, content=encode(body))
        return str(made["Id"])

    async def start(self, container: str) -> None:
        await self._maybe("POST", f"/containers/{container}/start", allowed=(304,))

    async def container(self, name: str) -> Container | None:
        """Return the container of that name or id, or None."""
        answer = await self._maybe("GET", f"/containers/{name}/json", allowed=(404,))
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        found = answer.json()
        state = found["State"]
        return Container(
            found["Id"],
            int(state.get("Pid") or 0) if state.get("Running") else 0,
            int(state.get("ExitCode") or 0),
            bool(state.get("OOMKilled")),
            found["Config"].get("Labels") or {},
        )

    async def containers(self, *labels: str) -> dict[str, Mapping[str, str]]:
        """Return the labels of all containers with these labels (`name=value`), running or not, by container id."""
        query = {"all": "true", "filters": encode({"label": list(labels)}).decode()}
        found = await self._json("GET", "/containers/json", params=query)
        return {each["Id"]: each.get("Labels") or {} for each in found}

    async def signal(self, container: str, name: str) -> None:
        await self._maybe("POST", f"/containers/{container}/kill", allowed=(404, 409, 500), params={"signal": name})

    async def stop(self, container: str, bound_s: int) -> None:
        """Ask the container to end, and kill it after `bound_s` seconds."""
        path, query = f"/containers/{container}/stop", {"t": str(bound_s)}
        await self._maybe("POST", path, allowed=(304, 404), params=query, timeout=bound_s + _STOP_MORE_S)

    async def remove(self, container: str) -> None:
        """Remove the container, running or not, with its own volumes."""
        await self._maybe("DELETE", f"/containers/{container}", allowed=(404,), params={"force": "true", "v": "true"})

    async def follow_output(self, container: str, since: float) -> AsyncIterator[bytes]:
        """Yield the container's output from `since` (seconds of the epoch) to its end, in pieces as they come."""
        query = {"follow": "true", "stdout": "true", "stderr": "true", "since": f"{since:.6f}"}
        async with self._stream("GET", f"/containers/{container}/logs", params=query, timeout=None) as answer:
            buffer = b""
            async for piece in answer.aiter_raw():
                buffer += piece
                while len(buffer) >= _FRAME_BYTES:
                    end = _FRAME_BYTES + int.from_bytes(buffer[4:_FRAME_BYTES], "big")
                    if len(buffer) < end:
                        break
                    yield buffer[_FRAME_BYTES:end]
                    buffer = buffer[end:]

    # --- networks ---

    async def make_network(self, name: str, body: Mapping[str, Any]) -> None:
        """Make the network. Leaves an existing one unchanged."""
        if (await self._maybe("GET", f"/networks/{name}", allowed=(404,))).status_code == httpx.codes.NOT_FOUND:
            await self._maybe("POST", "/networks/create", allowed=(409,), content=encode({"Name": name, **body}))

    # --- requests ---

    async def _json(self, method: str, path: str, **options: Any) -> Any:
        return (await self._maybe(method, path, **options)).json()

    async def _maybe(self, method: str, path: str, *, allowed: tuple[int, ...] = (), **options: Any) -> httpx.Response:
        headers = {"Content-Type": "application/json"} if "content" in options else {}
        try:
            answer = await self._client.request(method, path, headers=headers, **options)
        except httpx.TransportError as error:
            raise _away(error) from None
        if answer.is_error and answer.status_code not in allowed:
            raise _refusal(answer.status_code, answer.content)
        return answer

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **options: Any
    ) -> AsyncIterator[httpx.Response]:
        try:
            async with self._client.stream(method, path, headers=headers, **options) as answer:
                if answer.is_error:
                    raise _refusal(answer.status_code, await answer.aread())
                yield answer
        except httpx.TransportError as error:
            raise _away(error) from None


def _tell_progress(line: str, say: Say) -> None:
    """Pass on a line of a pull or build. Raises DockerError for a line that reports a failure."""
    if not line.strip():
        return
    told = decode(line)
    if error := told.get("error") or (told.get("errorDetail") or {}).get("message"):
        raise DockerError(str(error).strip())
    text = told.get("stream") or told.get("status") or ""
    if text.strip() and not told.get("progressDetail"):
        say(" ".join(filter(None, [told.get("id"), text.strip()])))


def _refusal(status: int, body: bytes) -> DockerError:
    try:
        told = decode(body)
        text = str(told.get("message") or told.get("cause") or told)
    except ValueError:
        text = body.decode(errors="replace").strip() or f"HTTP {status}"
    return DockerError(text, status)


def _away(error: httpx.TransportError) -> UnavailableError:
    return UnavailableError(f"The container engine does not answer: {type(error).__name__}")
