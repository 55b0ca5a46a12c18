"""Files on their way from a caller to the bucket: written piece by piece, never above a limit."""

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
    """Limits of what callers send. `public_url` is the origin that users see; `folder` is where a file lies until all of it
    has come; `bytes_max` is what one archive may take, or all images of a deployment.
    """

    public_url: str
    folder: Path
    bytes_max: int
    good_for_s: float = 3600
    # What no revision was made of, and what belongs to revisions that nobody goes back to.
    keep_s: float = 24 * 3600
    keep_revisions: int = 10


@contextmanager
def spooled(folder: Path) -> Iterator[IO[bytes]]:
    """A file that is gone afterwards. Raises UnavailableError when the disk is full."""
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
    """Write the chunks and return how many bytes they have. `check` is told how many came, before they are written."""
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
