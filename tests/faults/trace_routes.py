"""Valid and invalid requests made from the platform's own OpenAPI document, for every route of traces."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.config import SchemathesisConfig

from tests.faults.reports import Report, progress
from tests.faults.trace_bodies import Asker
from tests.platform.serving import Platform, make_platform
from tests.traces.ingest_rooms import make_run

_PATHS = (
    r"^(/api/v1|/v2)?/(runs|traces|threads|sessions|feedback|feedback-configs|model-price-map|ttl-settings|attachments)"
)
# With an invented key, no request gets further than 401.
_OUR_HEADERS = {"x-api-key", "x-tenant-id", "authorization", "user-agent"}
_MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)


async def trace_routes(folder: Path, *, examples: int = 100) -> Report:
    with make_platform(folder / "home", LOG_LEVEL="WARNING") as platform:
        return fuzz_routes(platform, examples=examples)


def fuzz_routes(platform: Platform, *, examples: int) -> Report:
    """Send this many requests of either kind for each operation, as a workspace of their own.

    No answer is a 5xx, or contains what nobody may see.
    """
    report = Report("trace-routes")
    with platform.client() as owner:
        made = owner.post("/api/v1/workspaces", json={"display_name": "fuzzed"}).raise_for_status().json()
    with httpx.Client(base_url=platform.url, headers={"X-Api-Key": made["api_key"]}, timeout=60) as http:
        asker = Asker(platform, http)
        known = _known(asker)
        config = SchemathesisConfig.from_dict({"generation": {"deterministic": True}})
        document = schemathesis.openapi.from_url(f"{platform.url}/openapi.json", config=config)
        operations = [found.ok() for found in document.include(path_regex=_PATHS).get_all_operations()]
        report.check(len(operations) > 40, f"the document has {len(operations)} operations of traces")
        for operation in operations:
            for mode in _MODES:
                _fuzz(asker, operation, mode, known, examples)
            progress(f"{operation.label}: {len(asker.wrongs)} wrong so far")
    statuses = sorted(asker.statuses.items())
    report.tell(operations=len(operations), answers=", ".join(f"{status}: {count}" for status, count in statuses))
    report.add(asker.wrongs)
    return report


def _known(asker: Asker) -> dict[str, list[str]]:
    """Return names of existing things, since random ones only ever meet a 404."""
    run = asker.run(extra={"metadata": {"thread_id": "a thread"}})
    child = make_run(run)
    for each in (run, child):
        asker.http.post("/runs", json=each).raise_for_status()
    feedback = {"run_id": run["id"], "key": "good", "score": 1}
    feedback_id = asker.http.post("/api/v1/feedback", json=feedback).raise_for_status().json()["id"]
    project = (asker.stored(run) or {})["session_id"]
    ids = {"run": [run["id"], child["id"]], "session": [project], "feedback": [feedback_id]}
    return {
        **dict.fromkeys(("run_id", "trace_id", "trace", "id", "parent_run", "run", "ids", "trace_ids"), ids["run"]),
        **dict.fromkeys(("session_id", "session", "project_id", "project_ids"), ids["session"]),
        "feedback_id": ids["feedback"],
        "thread_id": ["a thread"],
        "key": ["good"],
    }


def _fuzz(asker: Asker, operation: Any, mode: Any, known: dict[str, list[str]], examples: int) -> None:
    if mode is _MODES[1] and not (operation.body or operation.query or operation.path_parameters):
        return

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        # Shrinking repeats requests again and again, and the first failing one says enough.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def ask(case: schemathesis.Case, data: st.DataObject) -> None:
        _name_real_things(case, known, data)
        request = case.as_transport_kwargs(base_url=asker.platform.url)
        headers = {name: value for name, value in request["headers"].items() if name.lower() not in _OUR_HEADERS}
        body = {name: request[name] for name in ("json", "data", "files") if request.get(name) is not None}
        if isinstance(body.get("data"), str | bytes):
            body["content"] = body.pop("data")
        if "files" in body:
            body["files"] = list(map(_sendable, body["files"]))
        with suppress(httpx.InvalidURL):  # longer than any client sends
            asker.ask(
                operation.label, request["method"], request["url"], params=request["params"], headers=headers, **body
            )

    with suppress(Unsatisfiable):  # an operation that accepts anything cannot get an invalid request
        ask()


def _sendable(part: tuple[str, tuple[Any, ...]]) -> tuple[str, tuple[Any, ...]]:
    """Return a part of a form. Its data may be wrong on purpose, such as a number."""
    name, (filename, data, *kind) = part
    return name, (filename, data if isinstance(data, str | bytes) else json.dumps(data), *kind)


def _name_real_things(case: schemathesis.Case, known: dict[str, list[str]], data: st.DataObject) -> None:
    """Replace random names by those of existing things. Values that are wrong on purpose stay wrong."""

    def named(name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [named(name, item) for item in value]
        if isinstance(value, dict):
            return {key: named(key, item) for key, item in value.items()}
        if isinstance(value, str) and name in known and (name == "key" or _is_uuid(value)):
            return data.draw(st.sampled_from([*known[name], *known[name], str(uuid4())]))
        return value

    case.body = named("", case.body)
    for place in (case.path_parameters, case.query):
        for name in place or {}:
            place[name] = named(name, place[name])


def _is_uuid(value: str) -> bool:
    try:
        UUID(value)
    except ValueError:
        return False
    return True
