"""Bodies of trace runs as the official SDK sends them: trees of eight runs, 2.75 KB a run, of made-up text.

Texts come from a small pool, ids and times are new in each body: making a body has to cost less than reading it. What a
body holds depends on the seed alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from uuid import UUID

import orjson

BOUNDARY = "moorage-bench-d41d8cd98f00b204"
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"
RUNS_A_TREE = 8
RARE_WORD = "quartzite"

# name, run type, number of the parent, start and end in ms after the root's start
_TREE: Sequence[tuple[str, str, int | None, float, float]] = (
    ("LangGraph", "chain", None, 0, 2400),
    ("planner", "chain", 0, 1.2, 800),
    ("ChatOpenAI", "llm", 1, 2, 790),
    ("VectorStoreRetriever", "retriever", 0, 801, 950),
    ("search_docs", "tool", 0, 951, 1300),
    ("answer", "chain", 0, 1301, 2390),
    ("ChatAnthropic", "llm", 5, 1302, 2350),
    ("JsonOutputParser", "parser", 5, 2351, 2380),
)
_MODELS = ("gpt-5-mini", "claude-sonnet-4", "gemini-2.5-flash", "llama-3.3-70b")
_RUNTIME = {
    "sdk": "langsmith-py",
    "sdk_version": "0.4.31",
    "library": "langsmith",
    "platform": "Linux-6.8.0-x86_64-with-glibc2.39",
    "runtime": "python",
    "py_implementation": "CPython",
    "runtime_version": "3.12.7",
    "langchain_version": "0.3.27",
    "langchain_core_version": "0.3.76",
}
_POOL = 400
_WORDS = 20_000


@dataclass
class _Texts:
    """Payloads of one run of the pool, as JSON."""

    inputs: bytes
    outputs: bytes
    model: str | None
    tokens: tuple[int, int]


@dataclass
class Tree:
    """A trace: `post` and `patch` are the parts of its runs, `whole` says both in one."""

    root: str
    ids: list[str]
    user: str
    thread: str
    post: list[bytes] = field(default_factory=list)
    patch: list[bytes] = field(default_factory=list)
    whole: list[bytes] = field(default_factory=list)


class Bodies:
    def __init__(self, seed: int, project: str) -> None:
        self._random = random.Random(seed)
        self._project = project

    def tree(self, at: datetime, *, whole: bool) -> Tree:
        """One trace whose root starts at `at`."""
        ids = [self._uuid7(at + timedelta(milliseconds=start)) for _, _, _, start, _ in _TREE]
        user, thread = (
            f"user-{int(self._random.paretovariate(0.7)) % 50_000}",
            f"thread-{self._random.getrandbits(30):x}",
        )
        texts = self._pool[self._random.randrange(_POOL)]
        failed = self._random.random() < 0.03
        tree, dotted = Tree(ids[0], ids, user, thread), [""] * RUNS_A_TREE
        for number, (name, kind, parent, start_ms, end_ms) in enumerate(_TREE):
            start, end = at + timedelta(milliseconds=start_ms), at + timedelta(milliseconds=end_ms)
            own = f"{start:%Y%m%dT%H%M%S%fZ}{ids[number]}"
            dotted[number] = own if parent is None else f"{dotted[parent]}.{own}"
            key = {"id": ids[number], "trace_id": ids[0], "dotted_order": dotted[number], "session_name": self._project}
            if parent is not None:
                key["parent_run_id"] = ids[parent]
            begun = {"name": name, "run_type": kind, "start_time": start.isoformat(), "tags": ["prod", "rag"]}
            ended = {"end_time": end.isoformat()}
            if failed and number in (0, 7):
                ended["error"] = "TimeoutError: the model did not answer in time"
            text, metadata = texts[number], {"user_id": user, "thread_id": thread, "env": "prod"}
            if whole:
                extra = _extra(metadata, text, ended=True)
                parts = (("", {**key, **begun, **ended}), (".inputs", text.inputs), (".outputs", text.outputs))
                tree.whole += multipart_parts("post", ids[number], (*parts, (".extra", extra)))
                continue
            extra = _extra(metadata, text, ended=False)
            tree.post += multipart_parts(
                "post", ids[number], (("", {**key, **begun}), (".inputs", text.inputs), (".extra", extra))
            )
            late = [("", {**key, **ended}), (".outputs", text.outputs)]
            if text.model:
                late.append((".extra", _extra(metadata, text, ended=True)))
            tree.patch += multipart_parts("patch", ids[number], late)
        return tree

    def trees(self, first: datetime, last: datetime, count: int, *, whole: bool) -> Iterator[Tree]:
        """`count` traces that begin one after the other over the time."""
        step = (last - first) / count
        return (self.tree(first + step * number, whole=whole) for number in range(count))

    @cached_property
    def _pool(self) -> list[list[_Texts]]:
        letters = "etaoinshrdlucmfwypvbgkjqxz"
        weights = [1 / (rank + 2.5) for rank in range(len(letters))]
        words = ["".join(self._random.choices(letters, weights, k=self._random.randint(2, 10))) for _ in range(_WORDS)]
        common = [1 / (rank + 2.7) for rank in range(_WORDS)]
        corpus = self._random.choices(words, common, k=400_000)

        def text(median_words: float) -> str:
            count = min(3000, max(4, int(self._random.lognormvariate(0, 0.9) * median_words * 0.6)))
            start = self._random.randrange(len(corpus) - count)
            return " ".join(corpus[start : start + count])

        pool = [[self._texts(kind, text) for _, kind, _, _, _ in _TREE] for _ in range(_POOL)]
        rare = pool[0][4]
        rare.outputs = orjson.dumps({"output": f"{RARE_WORD} {text(90)}"})
        return pool

    def _texts(self, kind: str, text) -> _Texts:  # type: ignore[no-untyped-def]
        if kind == "llm":
            question, answer = text(220), text(80)
            model = self._random.choice(_MODELS)
            messages = [{"role": "system", "content": text(150)}, {"role": "user", "content": question}]
            reply = {
                "choices": [{"message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}],
                "model": model,
            }
            tokens = (len(question) // 4, len(answer) // 4)
            return _Texts(orjson.dumps({"messages": messages}), orjson.dumps(reply), model, tokens)
        if kind == "retriever":
            documents = [
                {"page_content": text(70), "metadata": {"source": f"kb/doc-{n}.md", "score": 0.5}} for n in range(3)
            ]
            return _Texts(orjson.dumps({"query": text(20)}), orjson.dumps({"documents": documents}), None, (0, 0))
        return _Texts(orjson.dumps({"input": text(110)}), orjson.dumps({"output": text(110)}), None, (0, 0))

    def _uuid7(self, at: datetime) -> str:
        millis = int(at.timestamp() * 1000)
        return str(
            UUID(
                int=millis << 80 | 7 << 76 | self._random.getrandbits(12) << 64 | 2 << 62 | self._random.getrandbits(62)
            )
        )


def _extra(metadata: dict[str, str], text: _Texts, *, ended: bool) -> bytes:
    extra: dict[str, object] = {"metadata": metadata, "runtime": _RUNTIME}
    if text.model:
        extra["invocation_params"] = {"model": text.model, "temperature": 0.7, "stream": True}
        more: dict[str, object] = {
            "ls_provider": text.model.split("-")[0],
            "ls_model_name": text.model,
            "ls_model_type": "chat",
        }
        if ended:
            given, made = text.tokens
            more["usage_metadata"] = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
        extra["metadata"] = {**metadata, **more}
    return orjson.dumps(extra)


def multipart_parts(operation: str, run_id: str, parts: Sequence[tuple[str, object]]) -> list[bytes]:
    return [_part(f"{operation}.{run_id}{suffix}", data) for suffix, data in parts]


def _part(name: str, data: object) -> bytes:
    content = data if isinstance(data, bytes) else orjson.dumps(data)
    return (
        (
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n'
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        ).encode()
        + content
        + b"\r\n"
    )


def body(parts: Sequence[bytes]) -> bytes:
    return b"".join((*parts, f"--{BOUNDARY}--\r\n".encode()))


def now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":  # what a run weighs on the wire
    trees = list(Bodies(1, "bench").trees(now(), now() + timedelta(seconds=5), 500, whole=False))
    sizes = [sum(map(len, tree.post + tree.patch)) / RUNS_A_TREE for tree in trees]
    print(json.dumps({"bytes_a_run": round(sum(sizes) / len(sizes))}))
