"""Runs for tests, made by hand or at random, and inserted into the store."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import orjson

from moorage.kernel.clickhouse import ClickHouse
from tests.traces.naive_filter import Feedback, StoredRun

_KEY = ("tenant_id", "session_id", "start_time", "id")
_TYPES = {
    "tenant_id": "UUID",
    "session_id": "UUID",
    "start_time": "DateTime64(6, 'UTC')",
    "id": "UUID",
    "trace_id": "Nullable(UUID)",
    "parent_run_id": "Nullable(UUID)",
    "dotted_order": "Nullable(String)",
    "is_root": "Nullable(Bool)",
    "trace_tier": "Nullable(String)",
    "ingested_at": "Nullable(DateTime64(6, 'UTC'))",
}
_TWINS = {
    "name": "Nullable(String)",
    "run_type": "Nullable(String)",
    "end_time": "Nullable(DateTime64(6, 'UTC'))",
    "first_token_time": "Nullable(DateTime64(6, 'UTC'))",
    "error": "Nullable(String)",
    "inputs": "Nullable(String)",
    "outputs": "Nullable(String)",
    "extra_without_metadata": "Nullable(String)",
    "metadata_json": "Nullable(String)",
    "events": "Nullable(String)",
    "tags": "Nullable(String)",
    "attachments": "Nullable(String)",
    "reference_example_id": "Nullable(UUID)",
    "thread_id": "Nullable(String)",
    "total_tokens": "Nullable(Int64)",
    "prompt_tokens": "Nullable(Int64)",
    "completion_tokens": "Nullable(Int64)",
    "total_cost": "Nullable(Decimal(38, 12))",
    "prompt_cost": "Nullable(Decimal(38, 12))",
    "completion_cost": "Nullable(Decimal(38, 12))",
    "prompt_token_details": "Nullable(String)",
}
_FEEDBACK = {
    "tenant_id": "UUID",
    "id": "UUID",
    "session_id": "UUID",
    "run_id": "Nullable(UUID)",
    "trace_id": "Nullable(UUID)",
    "start_time": "DateTime64(6, 'UTC')",
    "key": "String",
    "score": "Nullable(Float64)",
    "value": "Nullable(String)",
    "comment": "Nullable(String)",
    "source_type": "Nullable(String)",
    "source": "Nullable(String)",
    "created_at": "DateTime64(6, 'UTC')",
    "modified_at": "DateTime64(6, 'UTC')",
}


def make_run(
    parent: StoredRun | None = None,
    *,
    start_time: datetime | None = None,
    tenant_id: UUID | None = None,
    session_id: UUID | None = None,
    **fields: Any,
) -> StoredRun:
    """Return a run, below its parent if there is one."""
    at = start_time or (parent.start_time + timedelta(milliseconds=1) if parent else datetime.now(UTC))
    run_id = fields.pop("id", None) or uuid4()
    segment = f"{at.astimezone(UTC):%Y%m%dT%H%M%S%fZ}{run_id}"
    return StoredRun(
        tenant_id=parent.tenant_id if parent else tenant_id or uuid4(),
        session_id=parent.session_id if parent else session_id or uuid4(),
        start_time=at,
        id=run_id,
        trace_id=parent.trace_id if parent else run_id,
        dotted_order=f"{parent.dotted_order}.{segment}" if parent else segment,
        parent_run_ids=[*parent.parent_run_ids, parent.id] if parent else [],
        **fields,
    )


async def insert_runs(clickhouse: ClickHouse, runs: Sequence[StoredRun]) -> None:
    """Insert the runs, every other one as if its values had come by PATCH."""
    for patched, some in ((False, runs[::2]), (True, runs[1::2])):
        if some:
            rows = [_row(run) for run in some]
            prefix = "patched_" if patched else ""
            columns = {name: (kind, [row[name] for row in rows]) for name, kind in _TYPES.items()}
            columns |= {prefix + name: (kind, [row[name] for row in rows]) for name, kind in _TWINS.items()}
            await clickhouse.insert("trace_run_rows", columns)
    feedback = [_feedback_row(run, each) for run in runs for each in run.feedback]
    if feedback:
        columns = {name: (kind, [row[name] for row in feedback]) for name, kind in _FEEDBACK.items()}
        await clickhouse.insert("feedback_rows", columns)


def _row(run: StoredRun) -> dict[str, Any]:
    return {
        **{name: getattr(run, name, None) for name in (*_TYPES, *_TWINS)},
        "ingested_at": datetime.now(UTC),
        "inputs": _json(run.inputs),
        "outputs": _json(run.outputs),
        "extra_without_metadata": _json(run.extra),
        "metadata_json": _json(run.metadata),
        "events": _json(run.events),
        "tags": _json(run.tags),
        "attachments": _json(run.attachments),
        "prompt_token_details": _json(run.prompt_token_details),
    }


def _feedback_row(run: StoredRun, feedback: Feedback) -> dict[str, Any]:
    at = feedback.modified_at or datetime.now(UTC)
    return {
        "tenant_id": run.tenant_id,
        "id": feedback.id or uuid4(),
        "session_id": run.session_id,
        "run_id": run.id,
        "trace_id": run.trace_id,
        "start_time": run.start_time,
        "key": feedback.key,
        "score": feedback.score,
        "value": _json(feedback.value),
        "comment": feedback.comment,
        "source_type": feedback.source,
        "source": _json({"type": feedback.source}),
        "created_at": at,
        "modified_at": at,
    }


def _json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


# --- at random: few values, so that filters hit ---------------------------------------------------------------------

NAMES = ("alpha", "Beta run", "gam%ma", 'it\'s "q"', "日本")
WORDS = ("alpha", "beta", "x", "5", "0.5", "true", "null", "50%", "a_b", "é", "back\\slash", 'qu"ote')
KEYS = ("k", "user", "a", "b", "deep", "x.y")
TAGS = ("prod", "beta", "it's", "100%")
SCALARS: tuple[Any, ...] = (*WORDS, 5, 0.5, 12, 1e-7, True, False, None)


def random_json(random_: random.Random, depth: int = 3) -> Any:
    kind = random_.random()
    if depth == 0 or kind < 0.4:
        return random_.choice(SCALARS)
    if kind < 0.65:
        return [random_json(random_, depth - 1) for _ in range(random_.randrange(3))]
    # A key with dots is a path only at the top level.
    return {random_.choice(KEYS[:-1]): random_json(random_, depth - 1) for _ in range(random_.randrange(3))}


def random_object(random_: random.Random) -> dict[str, Any]:
    found = {random_.choice(KEYS[:-1]): random_json(random_) for _ in range(random_.randrange(4))}
    return found | ({"x.y": random_.choice(SCALARS)} if random_.random() < 0.2 else {})


def random_runs(seed: int, traces: int, tenant_id: UUID, session_id: UUID, since: datetime) -> list[StoredRun]:
    random_ = random.Random(seed)
    runs: list[StoredRun] = []
    for number in range(traces):
        at = since + timedelta(hours=number, microseconds=random_.randrange(10**6))
        root = _random_run(random_, None, start_time=at, tenant_id=tenant_id, session_id=session_id)
        trace = [root]
        for _ in range(random_.randrange(6)):
            parent = random_.choice(trace)
            trace.append(_random_run(random_, parent, start_time=parent.start_time + timedelta(milliseconds=7)))
        runs += trace
    return runs


def _random_run(random_: random.Random, parent: StoredRun | None, **where: Any) -> StoredRun:
    def maybe(value: Any, chance: float = 0.5) -> Any:
        return value if random_.random() < chance else None

    at = where["start_time"]
    tokens = maybe(random_.choice((0, 5, 12, 100)), 0.4)
    return make_run(
        parent,
        **where,
        id=UUID(int=random_.getrandbits(128), version=4),
        name=random_.choice(NAMES),
        run_type=random_.choice(("llm", "chain", "tool")),
        end_time=maybe(at + timedelta(seconds=random_.choice((0, 0.25, 5, 60))), 0.8),
        first_token_time=maybe(at + timedelta(seconds=0.25), 0.3),
        error=maybe(random_.choice(("boom", "alpha failed")), 0.3),
        inputs=maybe(random_object(random_), 0.9),
        outputs=maybe(random_object(random_), 0.6),
        metadata={key: random_json(random_, 1) for key in random_.sample(KEYS, random_.randrange(4))},
        extra=random_object(random_),
        tags=random_.sample(TAGS, random_.randrange(3)),
        thread_id=maybe(random_.choice(("t1", "t2"))),
        reference_example_id=maybe(UUID(int=7), 0.3),
        total_tokens=tokens,
        prompt_tokens=maybe(tokens),
        total_cost=None if tokens is None else Decimal(tokens) / 1000,
        feedback=[
            Feedback(
                random_.choice(("score", "note")),
                maybe(random_.choice((0.0, 1.0, 4.5)), 0.7),
                maybe(random_.choice(("good", "bad", 5, True))),
                maybe("alpha comment"),
                random_.choice(("api", "model")),
                id=UUID(int=random_.getrandbits(128), version=4),
            )
            for _ in range(random_.randrange(3))
        ],
    )


def ids(runs: Iterable[StoredRun]) -> list[UUID]:
    return [run.id for run in runs]
