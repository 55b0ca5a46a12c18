"""Piping a byte stream over messages in both directions, until either side ends."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from contextlib import suppress

_READ_BYTES = 64 * 1024


async def pipe(
    reader: StreamReader,
    writer: StreamWriter,
    send: Callable[[bytes], Awaitable[None]],
    receive: Callable[[], Awaitable[bytes | None]],
) -> bool:
    """Pipe a stream until either side ends. `receive` returns None at its end. True if anything was received."""
    has_received = False

    async def carry_out() -> None:
        while data := await reader.read(_READ_BYTES):
            await send(data)

    async def carry_in() -> None:
        nonlocal has_received
        while (data := await receive()) is not None:
            has_received = True
            writer.write(data)
            await writer.drain()

    tasks = [asyncio.create_task(carry_out()), asyncio.create_task(carry_in())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return has_received


async def close(writer: StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
