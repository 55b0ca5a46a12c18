"""An embedding function that knows words, and that a test may break."""

from __future__ import annotations

from zlib import crc32

DIMS = 32


def embed(texts: list[str]) -> list[list[float]]:
    """Return a vector of the text's words: texts with words in common are alike."""
    vectors = []
    for text in texts:
        vector = [0.001] * DIMS
        for word in text.lower().split():
            vector[crc32(word.encode()) % DIMS] += 1.0
        vectors.append(vector)
    return vectors


class Embedding:
    """An embedding function that a test may break."""

    def __init__(self) -> None:
        self.broken: BaseException | None = None
        self.dims = DIMS

    def __call__(self, texts: list[str]) -> list[list[float]]:
        if self.broken:
            raise self.broken
        return [vector[: self.dims] for vector in embed(texts)]
