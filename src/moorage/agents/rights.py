"""Rights that operations of a deployed agent need: to read its data, or to make it act.

Operations that are not in the table need the right to invoke; this includes the routes of the project's own
application.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl

from moorage.kernel.access import Scope

_READ, _INVOKE = Scope.AGENTS_READ, Scope.AGENTS_INVOKE

RIGHTS: Mapping[str, Scope] = {
    "POST /assistants": _INVOKE,
    "POST /assistants/search": _READ,
    "POST /assistants/count": _READ,
    "GET /assistants/{assistant_id}": _READ,
    "PATCH /assistants/{assistant_id}": _INVOKE,
    "DELETE /assistants/{assistant_id}": _INVOKE,
    "POST /assistants/{assistant_id}/versions": _READ,
    "POST /assistants/{assistant_id}/latest": _INVOKE,
    "GET /assistants/{assistant_id}/graph": _READ,
    "GET /assistants/{assistant_id}/schemas": _READ,
    "GET /assistants/{assistant_id}/subgraphs": _READ,
    "GET /assistants/{assistant_id}/subgraphs/{namespace}": _READ,
    "POST /threads": _INVOKE,
    "POST /threads/search": _READ,
    "POST /threads/count": _READ,
    "POST /threads/prune": _INVOKE,
    "GET /threads/expiring": _READ,
    "GET /threads/{thread_id}": _READ,
    "PATCH /threads/{thread_id}": _INVOKE,
    "DELETE /threads/{thread_id}": _INVOKE,
    "POST /threads/{thread_id}/copy": _INVOKE,
    "GET /threads/{thread_id}/storage": _READ,
    "GET /threads/{thread_id}/state": _READ,
    "POST /threads/{thread_id}/state": _INVOKE,
    "GET /threads/{thread_id}/state/{checkpoint_id}": _READ,
    "POST /threads/{thread_id}/state/checkpoint": _READ,
    "GET /threads/{thread_id}/history": _READ,
    "POST /threads/{thread_id}/history": _READ,
    "GET /threads/{thread_id}/stream": _READ,
    "POST /threads/{thread_id}/stream/events": _READ,
    "POST /threads/{thread_id}/commands": _INVOKE,
    "WEBSOCKET /threads/{thread_id}/stream/events": _INVOKE,
    "GET /threads/{thread_id}/runs": _READ,
    "POST /threads/{thread_id}/runs": _INVOKE,
    "POST /threads/{thread_id}/runs/stream": _INVOKE,
    "POST /threads/{thread_id}/runs/wait": _INVOKE,
    "POST /threads/{thread_id}/runs/crons": _INVOKE,
    "GET /threads/{thread_id}/runs/{run_id}": _READ,
    "DELETE /threads/{thread_id}/runs/{run_id}": _INVOKE,
    "GET /threads/{thread_id}/runs/{run_id}/join": _READ,
    "GET /threads/{thread_id}/runs/{run_id}/stream": _READ,
    "POST /threads/{thread_id}/runs/{run_id}/cancel": _INVOKE,
    "POST /runs": _INVOKE,
    "POST /runs/batch": _INVOKE,
    "POST /runs/stream": _INVOKE,
    "POST /runs/wait": _INVOKE,
    "POST /runs/cancel": _INVOKE,
    "GET /runs/{run_id}/stream": _READ,
    "POST /runs/crons": _INVOKE,
    "POST /runs/crons/search": _READ,
    "POST /runs/crons/count": _READ,
    "GET /runs/crons/{cron_id}": _READ,
    "PATCH /runs/crons/{cron_id}": _INVOKE,
    "DELETE /runs/crons/{cron_id}": _INVOKE,
    "GET /store/items": _READ,
    "PUT /store/items": _INVOKE,
    "DELETE /store/items": _INVOKE,
    "POST /store/items/search": _READ,
    "POST /store/namespaces": _READ,
    "GET /metrics": _READ,
    "GET /openapi.json": _READ,
    "GET /docs": _READ,
    "GET /docs/{file}": _READ,
}

_TEMPLATES = (re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(told)) for told, right in RIGHTS.items() if right is _READ)
_READING = re.compile("|".join(_TEMPLATES))


def right_for(method: str, path: str, query: bytes = b"", *, mount_prefix: str = "") -> Scope:
    """Return the right that a request needs. `query` is the raw query string."""
    reads = _READING.fullmatch(f"{method} {path.removeprefix(mount_prefix)}")
    return _READ if reads and not _cancels(query) else _INVOKE


def _cancels(query: bytes) -> bool:
    """Return True if the request would cancel the run that it follows when its client disconnects."""
    words = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    return any(name == "cancel_on_disconnect" and value.lower() in {"true", "1"} for name, value in words)
