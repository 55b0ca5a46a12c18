"""The process that represents a container: what it relays, without an engine. `tests/control/test_containers.py` has
one.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from tests.serving import free_port

from moorage.embedded.container import Attached, ContainerRun, Network
from moorage.embedded.docker import Docker


@pytest.mark.timeout(60)
@pytest.mark.skipif(os.geteuid() != 0, reason="entering a network is root's")
def test_connections_reach_the_container_however_often_garbage_is_collected(tmp_path: Path) -> None:
    path, port = tmp_path / "agent.sock", free_port()

    async def relay() -> list[bytes]:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"here")
            writer.close()

        inside = await asyncio.start_server(answer, "127.0.0.1", port)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            run = ContainerRun("", "", {}, os.dup(listening.fileno()), port, [])
            attached = Attached(run, cast("Docker", None))
            await cast("Any", attached)._accept(Network(os.getpid()))
            got = []
            for _ in range(3):
                gc.collect()
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_unix_connection(path)
                    got.append(await reader.read())
                    writer.close()
        attached.close()
        inside.close()
        return got

    assert uvloop.run(relay()) == [b"here"] * 3
