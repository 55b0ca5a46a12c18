"""Embeddings of texts by the function of `store.index`, with checks of its time and dimensions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog
from langgraph.store.base import ensure_embeddings

from moorage.agents.langgraph_json import StoreIndex
from moorage.kernel.errors import EmbeddingError, StartupError

log = structlog.get_logger(__name__)

T = TypeVar("T")

_TIMEOUT_S = 60.0

# Loads the object that a path of langgraph.json names.
Load = Callable[[str], object]


class Embedder:
    def __init__(self, index: StoreIndex, load: Load) -> None:
        """Load the embedding function. Raises StartupError when it cannot be loaded."""
        self.dims = index.dims
        try:
            self._embeddings = ensure_embeddings(load(index.embed) if _is_path(index.embed) else index.embed)  # type: ignore[arg-type]
        except Exception as error:
            raise StartupError(f"langgraph.json, store.index.embed ({index.embed}): {error}") from error

    async def of_texts(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text. Raises EmbeddingError."""
        vectors = await self._within_time(self._embeddings.aembed_documents(list(texts)))
        if len(vectors) != len(texts):
            raise EmbeddingError(f"The embedding function gave {len(vectors)} vectors for {len(texts)} texts")
        return [self._checked(vector) for vector in vectors]

    async def of_query(self, text: str) -> list[float]:
        """Return the vector of a query. Raises EmbeddingError."""
        return self._checked(await self._within_time(self._embeddings.aembed_query(text)))

    async def _within_time(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await work
        except TimeoutError:
            raise EmbeddingError(f"The embedding function took longer than {_TIMEOUT_S:.0f} s") from None
        except Exception as error:
            log.warning("the embedding function failed", exc_info=error)
            raise EmbeddingError(f"The embedding function failed: {type(error).__name__}") from error

    def _checked(self, vector: Sequence[float]) -> list[float]:
        if len(vector) != self.dims:
            raise EmbeddingError(
                f"The embedding function gave a vector of {len(vector)} dimensions; store.index.dims says {self.dims}"
            )
        return list(vector)


def _is_path(embed: str) -> bool:
    """Return True for `file.py:function` or `package.module:function`; `provider:model` names a model instead."""
    place, _, _ = embed.partition(":")
    return "." in place or "/" in place
