"""Trace runs to export: agents of about eight runs a trace, 2.7 KB a run, as the SDKs send them and the store keeps them.

One day is made; the other days are the same traces with ids and times of their own. A part of the runs arrives as two
rows (POST, and PATCH in another insert), as runs do that take longer than the ingest buffer waits.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
# How many runs of a hundred arrive as two rows.
SPLIT_PCT = 20

_RUNS_OF_TRACE = 8
_WORDS = 30_000
_CORPUS_BYTES = 8_000_000
_MODELS = ("gpt-5-mini", "claude-sonnet-4", "gemini-2.5-flash", "llama-3.3-70b")
_CHILDREN = (
    ("ChatOpenAI", "llm"),
    ("search_docs", "tool"),
    ("VectorStoreRetriever", "retriever"),
    ("Parser", "parser"),
)
_RUNTIME = {
    "sdk": "langsmith-py",
    "sdk_version": "0.4.31",
    "platform": "Linux-6.8.0-x86_64-with-glibc2.39",
    "runtime_version": "3.12.7",
    "langchain_version": "0.3.27",
    "langchain_core_version": "0.3.76",
}
_TEXT, _WORD, _ID = "Nullable(String)", "LowCardinality(Nullable(String))", "Nullable(UUID)"
_TIME, _COUNT, _COST = "Nullable(DateTime64(6, 'UTC'))", "Nullable(Int64)", "Nullable(Decimal(38, 12))"
_KEY = {"tenant_id": "UUID", "session_id": "UUID", "start_time": "DateTime64(6, 'UTC')", "id": "UUID"}
_IDENTITY = {"trace_id": _ID, "parent_run_id": _ID, "dotted_order": _TEXT, "is_root": "Nullable(Bool)"}
_POSTED = {
    "name": _WORD,
    "run_type": _WORD,
    "inputs": _TEXT,
    "extra_without_metadata": _TEXT,
    "metadata_json": _TEXT,
    "tags": _TEXT,
    "thread_id": _TEXT,
}
_PATCHED = {
    "patched_end_time": _TIME,
    "patched_first_token_time": _TIME,
    "patched_error": _TEXT,
    "patched_outputs": _TEXT,
    "patched_events": _TEXT,
    "patched_prompt_tokens": _COUNT,
    "patched_completion_tokens": _COUNT,
    "patched_total_tokens": _COUNT,
    "patched_prompt_cost": _COST,
    "patched_completion_cost": _COST,
    "patched_total_cost": _COST,
}

Columns = dict[str, tuple[str, list[Any]]]


@dataclass(frozen=True)
class _Run:
    """What is the same on every day: payloads, the place in its trace, offsets of its times in microseconds."""

    trace: int
    position: int
    ancestors: tuple[int, ...]  # positions in the trace, root first
    start_us: int
    length_us: int
    first_token_us: int | None
    posted: tuple[Any, ...]
    patched: tuple[Any, ...]  # from the error on


class Days:
    """`rows` runs of a project on each of `days` days."""

    def __init__(self, rows: int, tenant_id: UUID, session_id: UUID, seed: int = 7) -> None:
        self._tenant_id = str(tenant_id)
        self._session_id = str(session_id)
        self._seed = seed
        self._runs = _runs_of_day(rows, random.Random(seed))

    def inserts(self, day: int) -> Iterator[Columns]:
        """The inserts that bring the runs of a day."""
        random_ = random.Random(self._seed * 1000 + day)
        at = SINCE + timedelta(days=day)
        known = datetime.now(UTC)
        whole: list[tuple[Any, ...]] = []
        begun: list[tuple[Any, ...]] = []
        ended: list[tuple[Any, ...]] = []
        trace, ids, starts = -1, list[str](), list[datetime]()
        for run in self._runs:
            start = at + timedelta(microseconds=run.start_us)
            if run.trace != trace:
                trace, ids, starts = run.trace, [], []
            ids.append(_id(random_, start))
            starts.append(start)
            line = (*run.ancestors, run.position)
            key = (self._tenant_id, self._session_id, start, ids[-1])
            identity = (
                ids[0],
                ids[run.ancestors[-1]] if run.ancestors else None,
                ".".join(f"{starts[each]:%Y%m%dT%H%M%S%fZ}{ids[each]}" for each in line),
                not run.ancestors,
            )
            end = start + timedelta(microseconds=run.length_us)
            first = None if run.first_token_us is None else start + timedelta(microseconds=run.first_token_us)
            if random_.randrange(100) < SPLIT_PCT:
                begun.append((*key, *identity, *run.posted, known))
                ended.append((*key, *identity, end, first, *run.patched, known))
            else:
                whole.append((*key, *identity, *run.posted, end, first, *run.patched, known))
        known_type = {"ingested_at": _TIME}
        yield _columns({**_KEY, **_IDENTITY, **_POSTED, **_PATCHED, **known_type}, whole)
        yield _columns({**_KEY, **_IDENTITY, **_POSTED, **known_type}, begun)
        yield _columns({**_KEY, **_IDENTITY, **_PATCHED, **known_type}, ended)


def _columns(types: dict[str, str], rows: list[tuple[Any, ...]]) -> Columns:
    return {
        name: (kind, list(values)) for (name, kind), values in zip(types.items(), zip(*rows, strict=True), strict=True)
    }


def _id(random_: random.Random, at: datetime) -> str:
    """A UUIDv7, as current SDKs make them."""
    stamp = int(at.timestamp() * 1000)
    bits = stamp << 80 | 7 << 76 | random_.getrandbits(12) << 64 | 2 << 62 | random_.getrandbits(62)
    return str(UUID(int=bits))


def _runs_of_day(rows: int, random_: random.Random) -> list[_Run]:
    text = _Texts(random_)
    runs: list[_Run] = []
    traces = max(1, rows // _RUNS_OF_TRACE)
    between_us = 86_000_000_000 // (traces + 1)
    trace = 0
    while len(runs) < rows:
        count = min(rows - len(runs), max(1, int(random_.gauss(_RUNS_OF_TRACE, 3))))
        start_us = min(trace, traces) * between_us + random_.randrange(between_us)
        runs += _trace(trace, count, start_us, random_, text)
        trace += 1
    return runs


def _trace(trace: int, count: int, start_us: int, random_: random.Random, text: _Texts) -> Iterator[_Run]:
    length_us = int(random_.lognormvariate(14.3, 0.9))
    lines: list[tuple[int, ...]] = []
    question, documents = text(5.0, 6000), text(7.0, 30_000)
    metadata = {
        "user_id": f"user-{random_.randrange(50_000)}",
        "thread_id": f"thread-{random_.randrange(1 << 30):x}",
        "env": "prod",
        "app_version": f"1.{random_.randrange(30)}.{random_.randrange(10)}",
        "revision_id": f"{random_.randrange(400):08x}",
    }
    for position in range(count):
        parent = random_.randrange(position) if position and random_.random() < 0.3 else 0
        line = (*lines[parent], parent) if position else ()
        lines.append(line)
        name, kind = _CHILDREN[random_.randrange(4)] if position else ("LangGraph", "chain")
        begins_us = length_us * position // (count + 1)
        takes_us = length_us // count if position else length_us
        said = _said(kind, question, documents, random_, text)
        extra: dict[str, Any] = {"runtime": _RUNTIME}
        more = {"ls_run_depth": len(line)}
        if kind == "llm":
            model = random_.choice(_MODELS)
            extra["invocation_params"] = {"model": model, "temperature": 0.7, "stream": True, "max_tokens": 4096}
            more |= {"ls_provider": model.partition("-")[0], "ls_model_name": model, "ls_model_type": "chat"}
        tags = random_.sample(("prod", "beta", "rag", "web", "mobile"), random_.randrange(3))
        thread = metadata["thread_id"]
        posted = (
            name,
            kind,
            said.inputs,
            json.dumps(extra),
            json.dumps({**metadata, **more}),
            json.dumps(tags),
            thread,
        )
        yield _Run(
            trace,
            position,
            line,
            start_us + begins_us,
            takes_us,
            takes_us // 5 if kind == "llm" else None,
            posted,
            (said.error, said.outputs, said.events, *said.usage),
        )


@dataclass(frozen=True)
class _Said:
    """What went into a run and came out of it."""

    inputs: str
    outputs: str | None
    error: str | None
    events: str | None
    usage: tuple[int | Decimal | None, ...]


def _said(kind: str, question: str, documents: str, random_: random.Random, text: _Texts) -> _Said:
    error = f"Traceback (most recent call last):\nTimeoutError: {text(5.0, 400)}" if random_.random() < 0.02 else None
    events, usage = None, (None,) * 6
    if kind == "llm":
        answer, context = text(6.0, 16_000), documents[: len(text(7.0, 30_000))]
        messages = [("system", text(6.8, 900)), ("human", f"{question}\n\nContext:\n{context}")]
        inputs = json.dumps({"messages": [[{"type": role, "content": content} for role, content in messages]]})
        outputs = json.dumps({"generations": [[{"text": answer, "message": {"type": "ai", "content": answer}}]]})
        events = json.dumps(
            [{"name": "start"}, {"name": "new_token", "kwargs": {"token": answer[:6]}}, {"name": "end"}]
        )
        tokens = (len(inputs) // 4, len(answer) // 4)
        costs = (Decimal(tokens[0]) / 4_000_000, Decimal(tokens[1]) / 500_000)
        usage = (*tokens, sum(tokens), *costs, costs[0] + costs[1])
    elif kind == "retriever":
        inputs = json.dumps({"query": question[:300]})
        outputs = json.dumps({"documents": [{"page_content": documents, "metadata": {"score": random_.random()}}]})
    else:
        inputs = json.dumps({"input": question, "chat_history": [{"role": "user", "content": text(5.6, 9000)}]})
        outputs = json.dumps({"output": text(6.5, 16_000)})
    return _Said(inputs, None if error else outputs, error, events, usage)


class _Texts:
    """Words of a natural distribution, in lengths of one."""

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        letters, weights = "etaoinshrdlucmfwypvbgkjqxz", [1 / (n + 2.5) for n in range(26)]
        words = ["".join(random_.choices(letters, weights, k=random_.randrange(2, 11))) for _ in range(_WORDS)]
        by_use = [1 / (n + 2.7) ** 1.05 for n in range(_WORDS)]
        self._corpus = " ".join(random_.choices(words, by_use, k=_CORPUS_BYTES // 6))

    def __call__(self, mean: float, longest: int) -> str:
        size = min(longest, max(20, int(self._random.lognormvariate(mean, 0.9))))
        start = self._random.randrange(len(self._corpus) - size)
        return self._corpus[start : start + size]
