"""Client of a listener's moorage: sends it the platform's orders, by its public API and through a tunnel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from moorage.control.runtimes import DeployError
from moorage.embedded import agents
from moorage.kernel.encoding import decode
from moorage.kernel.errors import UnavailableError

_TIMEOUT_S = 60.0
_PAGE_MAX = 100
_LOGS_MAX = 1000
_CHUNK_BYTES = 2**18
_ANSWER_BYTES_MAX = 64 * 2**20


class ListenerPlatform:
    """The moorage of one listener. Every call raises UnavailableError while the listener cannot be reached, and
    DeployError with the listener's message when it refuses.
    """

    def __init__(self, socket: Path, key: str) -> None:
        self._socket = socket
        self._key = key

    async def find(self, name: str) -> dict[str, Any] | None:
        """Return the deployment of that name, or None."""
        found: list[dict[str, Any]] = (await self._call("GET", "/v2/deployments", params={"name": name}))["resources"]
        return found[0] if found else None

    async def read_all(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            page = await self._call("GET", "/v2/deployments", params={"limit": _PAGE_MAX, "offset": len(found)})
            found += page["resources"]
            if len(page["resources"]) < _PAGE_MAX:
                return found

    async def create(self, new: Mapping[str, Any]) -> dict[str, Any]:
        return dict(await self._call("POST", "/v2/deployments", json=new))

    async def change(self, deployment_id: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        return dict(await self._call("PATCH", f"/v2/deployments/{deployment_id}", json=patch))

    async def delete(self, deployment_id: str) -> None:
        await self._call("DELETE", f"/v2/deployments/{deployment_id}", gone_is_well=True)

    async def upload(self, deployment_id: str, archive: Path) -> str:
        """Upload a source archive and return its path for a revision."""
        target = await self._call("POST", f"/v2/deployments/{deployment_id}/upload-url")
        url = urlsplit(target["upload_url"])
        size_bytes = (await asyncio.to_thread(archive.stat)).st_size
        headers = {**target["upload_headers"], "Content-Length": str(size_bytes)}
        await self._call("PUT", f"{url.path}?{url.query}", content=_chunks(archive), headers=headers)
        return str(target["object_path"])

    async def read_revision(self, deployment_id: str, revision_id: str) -> dict[str, Any]:
        return dict(await self._call("GET", f"/v2/deployments/{deployment_id}/revisions/{revision_id}"))

    async def read_logs(
        self, deployment_id: str, revision_id: str | None, kind: str, after: str | None
    ) -> tuple[Sequence[dict[str, Any]], str | None]:
        """Read log lines in order, and return them with the position to continue at."""
        place = f"/v1/projects/{deployment_id}" + (f"/revisions/{revision_id}" if revision_id else "")
        wanted = {"order": "asc", "limit": _LOGS_MAX, "offset": after}
        page = await self._call("POST", f"{place}/{kind}_logs", json=wanted)
        return page["logs"], page["next_offset"]

    async def _call(self, method: str, path: str, *, gone_is_well: bool = False, **options: Any) -> Any:
        try:
            async with self._client() as client, client.stream(method, path, **options) as answer:
                body = await _read(answer)
        except (httpx.HTTPError, OSError) as error:
            raise UnavailableError(f"The listener cannot be reached now ({type(error).__name__})") from error
        if answer.status_code == httpx.codes.NOT_FOUND and gone_is_well:
            return None
        if answer.is_success:
            return _sound(body) if body else None
        if answer.is_server_error or answer.status_code in {401, 409, 429}:
            raise UnavailableError(f"The listener is not ready for it yet: {_words(body)}")
        raise DeployError(f"The listener refuses: {_words(body)}")

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        with agents.short_path(self._socket) as address:
            transport = httpx.AsyncHTTPTransport(uds=address, verify=False)  # no TLS: loading authorities is slow
            headers = {"X-Api-Key": self._key}
            async with httpx.AsyncClient(
                transport=transport, base_url="http://listener", headers=headers, timeout=_TIMEOUT_S
            ) as client:
                yield client


async def _read(answer: httpx.Response) -> bytes:
    """Read a body up to a limit, so that another machine cannot fill the platform's memory."""
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > _ANSWER_BYTES_MAX:
            raise UnavailableError(f"The listener answers with more than {_ANSWER_BYTES_MAX // 2**20} MB")
    return bytes(body)


def _sound(body: bytes) -> Any:
    try:
        return decode(body)
    except ValueError:
        raise UnavailableError("The listener answers with something that is no JSON") from None


def _words(body: bytes) -> str:
    try:
        told = decode(body)
    except ValueError:
        return "it did not say why"
    return str(told.get("detail") if isinstance(told, dict) else told)[:1000]


async def _chunks(archive: Path) -> AsyncIterator[bytes]:
    with archive.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            yield data
