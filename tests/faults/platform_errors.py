"""A walk over the errors of the whole platform: none shows a secret, an address of an engine or a path of the host."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from fastapi import FastAPI

from moorage.wiring.platform import mount_all
from tests.accounts.matrix import Guarded, operations
from tests.faults.reports import Report, progress
from tests.faults.trace_bodies import Asker
from tests.platform.serving import Platform, make_platform

# Values that a caller may send by mistake at a wrong place. No error may show them, since errors are logged and
# forwarded.
_CANARY = "hunter2-never-to-be-shown"
_SECRET_FIELDS = ("secret", "password", "token", "credential", "key_id", "api_key", "webhook", "signing", "env")
# Operations that are left out, because they would really do what they are asked to.
_NOT_ASKED = {"/api/v1/master-key/rotate", "/master-key/rotate"}
# While engines stand still: requests that need PostgreSQL, the trace store, or both.
_READS = ("/api/v1/sessions", "/api/v1/workspaces", "/v2/deployments", "/api/v1/feedback", "/api/v1/bulk-exports")


async def platform_errors(folder: Path, *, times: int = 1) -> Report:
    with make_platform(folder / "home", LOG_LEVEL="WARNING") as platform:
        report = walk_errors(platform)
        for _ in range(times):
            for engine in ("postgres", "clickhouse"):
                report.add(await _away(platform, engine))
                progress(f"without {engine}: {len(report.wrongs)} wrong so far")
    return report


def walk_errors(platform: Platform, *, every: int = 1) -> Report:
    """Walk over all operations at all their prefixes. With `every`, only each `every`-th is asked."""
    report = Report("platform-errors")
    app = FastAPI()
    mount_all(app)
    found = [each for each in operations(app) if each.method != "*" and each.path not in _NOT_ASKED][::every]
    with platform.client() as http:
        asker = Asker(platform, http)
        asker.secrets["what was sent"] = _CANARY
        for operation in found:
            _ask_by_strangers(asker, operation)
            _ask_for_nothing(asker, operation)
        document = http.get("/openapi.json").raise_for_status().json()
        for path, method, fields in list(_bodies(document))[::every]:
            _ask_with_secrets(asker, method, path, fields)
        statuses = sorted(asker.statuses.items())
    errors = sum(count for status, count in statuses if status >= 400)
    report.tell(operations=len(found), errors=errors)
    report.tell(answers=", ".join(f"{status}: {count}" for status, count in statuses))
    report.check(errors > 3 * len(found), "the walk met too few errors to say anything")
    report.add(asker.wrongs)
    return report


def _ask_by_strangers(asker: Asker, operation: Guarded) -> None:
    """Ask with keys and tokens that nobody issued, and for a workspace that is not the caller's."""
    for headers in (
        {"X-Api-Key": f"lsv2_pt_{_CANARY}"},
        {"X-Api-Key": "", "Authorization": f"Bearer {_CANARY}.{_CANARY}.{_CANARY}"},
        {"X-Tenant-Id": str(uuid4())},
        {"X-Tenant-Id": _CANARY},
    ):
        asker.ask(f"{operation} by a stranger", operation.method, operation.url, headers=headers)


def _ask_for_nothing(asker: Asker, operation: Guarded) -> None:
    """Ask for things that do not exist, and with invalid bodies."""
    if operation.method == "GET" or "{" in operation.path:
        asker.ask(f"{operation} of nothing", operation.method, operation.url)
        odd = operation.url.replace(operation.url.rpartition("/")[2], "..%2f..%2fetc%2fpasswd%00")
        if "{" in operation.path:
            asker.ask(f"{operation} of an odd name", operation.method, odd)
    if operation.method in {"POST", "PUT", "PATCH"}:
        for content in (b"{", b"[]", b'"' + _CANARY.encode() + b'"', b'{"x": "' + _CANARY.encode() + b'"}', b"\xff"):
            asker.ask(f"{operation} with {content!r}", operation.method, operation.url, content=content)


def _ask_with_secrets(asker: Asker, method: str, path: str, fields: dict[str, bool]) -> None:
    """Send secrets as values of wrong types in the fields for secrets, with the other fields wrong too."""
    url = Guarded(method, path, None).url
    for value in (_CANARY, [_CANARY], {"x": _CANARY}, {"x": {"y": [_CANARY]}}, f"postgresql://u:{_CANARY}@h/d"):
        body = {name: value if is_secret else 5 for name, is_secret in fields.items()}
        asker.ask(f"{method} {path} with a secret", method, url, json=body)


def _bodies(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, bool]]]:
    """Return the operations with the fields of their bodies, and which of the fields are for secrets."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content and path not in _NOT_ASKED:
                names = _fields(document, content["schema"])
                yield path, method.upper(), {name: any(part in name for part in _SECRET_FIELDS) for name in names}


def _fields(document: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    options = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    return {*schema.get("properties", {}), *(name for option in options for name in _fields(document, option))}


# --- engines that stand still ---------------------------------------------------------------------------------------------


async def _away(platform: Platform, engine: str) -> list[str]:
    """Send reads and writes, all at once, while an engine does not answer."""
    pid = platform.engines()[engine]
    with platform.client() as http:
        asker = Asker(platform, http)
        http.timeout = httpx.Timeout(60)
        os.kill(pid, signal.SIGSTOP)
        try:
            run = asker.run()
            await asyncio.gather(
                *(asyncio.to_thread(_ask_away, asker, engine, "GET", path) for path in _READS),
                asyncio.to_thread(_ask_away, asker, engine, "POST", "/runs", json=run),
                asyncio.to_thread(_ask_away, asker, engine, "GET", f"/api/v1/runs/{run['id']}"),
                asyncio.to_thread(_ask_away, asker, engine, "POST", "/api/v1/runs/query", json={"trace": run["id"]}),
            )
        finally:
            os.kill(pid, signal.SIGCONT)
        return asker.wrongs


def _ask_away(asker: Asker, engine: str, method: str, path: str, **more: Any) -> None:
    """Check an answer while an engine is away: right if the engine is not needed, else 503 with Retry-After.

    "Not there" is right too: a run that was not accepted without PostgreSQL is not in the trace store.
    """
    answer = asker.http.request(method, path, **more)
    right = (
        answer.status_code < 300
        or answer.status_code == 404
        or (answer.status_code == 503 and answer.headers.get("Retry-After"))
    )
    asker.check(right, f"without {engine}, {method} {path}: {answer.status_code} {answer.text[:200]}")
    asker.look_for_leaks(path, answer)
