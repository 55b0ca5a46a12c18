"""Host names of deployments: makes the front door agree with the rows, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from pathlib import Path

import structlog

from moorage.control.runtimes.front_link import HostLinks
from moorage.control.store.host_names import HostNameStore

log = structlog.get_logger(__name__)


class HostNames:
    """The host names that the front door serves. A name among `platform_names` never leads to a deployment, even if a
    deployment had it before the platform did.
    """

    def __init__(self, store: HostNameStore, home: Path, platform_names: Container[str]) -> None:
        self._store = store
        self._links = HostLinks(home)
        self._platform_names = platform_names

    async def look(self) -> None:
        """Serve the host names of the rows, and no others. Idempotent. A deleted deployment's name is free at once."""
        served = [each for each in await self._store.read() if each.host_name not in self._platform_names]
        await asyncio.to_thread(self._links.serve, served)
