"""Temporary files for uploads on their way to the bucket: written in pieces, never above a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from moorage.kernel.errors import UnavailableError

_WRITE_BYTES = 2**20


@dataclass(frozen=True)
class SpoolRules:
    """Limits of uploads. `public_url` is the origin that users see; `folder` holds a file until it is complete;
    `bytes_max` limits one archive, or all images of a deployment.
    """

    public_url: str
    folder: Path
    bytes_max: int
    good_for_s: float = 3600
    # How long unused files are kept, and for how many of the newest revisions files are kept.
    keep_s: float = 24 * 3600
    keep_revisions: int = 10


@contextmanager
def spooled(folder: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file, and remove it afterwards. Raises UnavailableError when the disk is full."""
    with disk_errors():
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix="upload-") as file:
            yield file


@contextmanager
def disk_errors() -> Iterator[None]:
    """Translate errors of the disk into UnavailableError, without the path."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"The upload cannot be stored: {error.strerror or 'the disk failed'}") from error


async def write_all(file: IO[bytes], chunks: AsyncIterator[bytes], check: Callable[[int], None]) -> int:
    """Write the chunks and return how many bytes they have. `check` is called with the total before each write."""
    written, buffer = 0, bytearray()
    async for chunk in chunks:
        buffer += chunk
        check(written + len(buffer))
        if len(buffer) >= _WRITE_BYTES:
            written += await asyncio.to_thread(_write_out, file, buffer)
    return written + await asyncio.to_thread(_write_out, file, buffer)


def _write_out(file: IO[bytes], buffer: bytearray) -> int:
    written = file.write(buffer)
    file.flush()
    buffer.clear()
    return written
