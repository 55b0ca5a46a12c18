"""Listeners: created, read, changed, deleted and connected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from moorage.control.records.listeners import (
    Listener,
    ListenerCreate,
    ListenerHello,
    ListenerPatch,
    ListenersList,
    StoredListener,
)
from moorage.control.store.listeners import ListenerStore
from moorage.control.tunnels import Tunnel, Tunnels
from moorage.kernel.access import Caller
from moorage.kernel.errors import BadRequestError, ConflictError, NotFoundError
from moorage.kernel.ids import uuid7


class Listeners:
    def __init__(self, store: ListenerStore, tunnels: Tunnels) -> None:
        self._store = store
        self._tunnels = tunnels

    async def create(self, caller: Caller, new: ListenerCreate) -> Listener:
        """Create a listener. Raises ConflictError when the workspace has a listener of that compute id."""
        made = await self._store.insert(caller.workspace_id, uuid7(), new, caller.actor)
        if made is None:
            raise ConflictError(
                f"Listener for LangSmith workspace ID '{caller.workspace_id}' and compute ID '{new.compute_id}' already exists."
            )
        return self._shown(made)

    async def list(self, caller: Caller, limit: int, offset: int) -> ListenersList:
        """List the listeners, newest first."""
        rows = await self._store.page(caller.workspace_id, limit, offset)
        return {"resources": [self._shown(row) for row in rows], "offset": offset + len(rows)}

    async def get(self, caller: Caller, listener_id: UUID) -> Listener:
        """Return the listener. Raises NotFoundError, as does every method that takes a listener's id."""
        return self._shown(await self._read(caller, listener_id))

    async def update(self, caller: Caller, listener_id: UUID, patch: ListenerPatch) -> Listener:
        """Change the listener. Raises BadRequestError for namespaces of a listener that is not a cluster."""
        before = await self._read(caller, listener_id)
        config = patch.compute_config
        if config and config.k8s_namespaces is not None and before["compute_type"] != "k8s":
            raise BadRequestError("compute_config.k8s_namespaces is for listeners of the compute_type k8s only")
        row = await self._store.update(caller.workspace_id, listener_id, patch, caller.actor)
        if row is None:
            raise _not_found(listener_id)
        return self._shown(row)

    async def delete(self, caller: Caller, listener_id: UUID) -> None:
        """Delete the listener. Raises ConflictError while deployments run there; those that are already being deleted
        do not count.
        """
        await self._read(caller, listener_id)
        if count := await self._store.count_deployments(caller.workspace_id, listener_id):
            raise ConflictError(
                f"{count} deployments name this listener in source_config.listener_id: delete them first"
            )
        await self._store.remove(caller.workspace_id, listener_id)
        self._tunnels.drop(listener_id)

    async def check(self, workspace_id: UUID, source_config: Mapping[str, Any]) -> None:
        """Check a deployment's listener. Raises BadRequestError when the deployment cannot run on the listener that its
        configuration names.
        """
        listener_id, config = source_config.get("listener_id"), source_config.get("listener_config") or {}
        namespace = config.get("k8s_namespace")
        if listener_id is None:
            if namespace:
                raise BadRequestError("source_config.listener_config needs source_config.listener_id")
            return
        row = await self._store.read(workspace_id, _id_of(listener_id))
        if row is None:
            raise _no_such(listener_id)
        allowed = row["compute_config"].get("k8s_namespaces")
        if namespace and row["compute_type"] != "k8s":
            raise BadRequestError("source_config.listener_config.k8s_namespace: the listener is no cluster")
        if namespace and allowed is not None and namespace not in allowed:
            raise BadRequestError(
                f"source_config.listener_config.k8s_namespace: the listener has {', '.join(allowed) or 'no namespaces'}"
            )

    async def connect(self, caller: Caller, listener_id: UUID, hello: ListenerHello, tunnel: Tunnel) -> None:
        """Keep a tunnel of the listener until it is used or cut. Raises ConflictError while another machine serves the
        listener.
        """
        row = await self._read(caller, listener_id)
        if not self._tunnels.is_connected(listener_id):
            await self._store.set_version(listener_id, hello.version)
        await self._tunnels.keep(listener_id, row["compute_id"], hello, tunnel)

    async def note_seen(self) -> None:
        """Record which listeners are connected now."""
        await self._store.set_seen(self._tunnels.connected())

    async def _read(self, caller: Caller, listener_id: UUID) -> StoredListener:
        row = await self._store.read(caller.workspace_id, listener_id)
        if row is None:
            raise _not_found(listener_id)
        return row

    def _shown(self, row: StoredListener) -> Listener:
        return {
            "id": row["id"],
            "version": row["version"],
            "compute_type": row["compute_type"],
            "compute_id": row["compute_id"],
            "compute_config": row["compute_config"],
            "is_connected": self._tunnels.is_connected(row["id"]),
            "last_seen_at": row["last_seen_at"],
            "created_at": row["created_at"],
            "updated_at": row["updated_at"],
        }


def _not_found(listener_id: UUID) -> NotFoundError:
    return NotFoundError(f"Listener ID {listener_id} not found.")


def _no_such(listener_id: str) -> BadRequestError:
    return BadRequestError(
        f"source_config.listener_id: {listener_id[:80]!r} is no listener of this workspace. `moorage listener NAME` on the other "
        "machine makes one"
    )


def _id_of(listener_id: str) -> UUID:
    try:
        return UUID(listener_id)
    except ValueError:
        raise _no_such(listener_id) from None
