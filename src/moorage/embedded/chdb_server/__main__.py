"""`python -m moorage.embedded.chdb_server DIRECTORY SOCKET USER`: what embedded/clickhouse.py starts.

DIRECTORY has `data`, `spool`, `password`; USER is the number of the user to become, if started as root. Code is loaded
before that, since it may lie where that user cannot read.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path

from moorage.embedded.chdb_server.engine import Engine
from moorage.embedded.chdb_server.server import Server

STOP_BOUND_S = 5.0
_BACKLOG = 128

# Per statement, unless it says otherwise. A whole is bounded by max_server_memory_usage.
_DEFAULTS = (
    ("max_memory_usage", "500000000"),
    ("max_execution_time", "60"),
    ("max_partitions_per_insert_block", "0"),
)


def main(directory: Path, address: Path, user: int) -> None:
    password = (directory / "password").read_text()
    configuration = (Path(__file__).parent / "config.xml").read_bytes()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    (directory / "spool" / "config.xml").write_bytes(configuration)  # where that user can read it
    engine = Engine(directory / "data", directory / "spool" / "config.xml", directory / "spool", _DEFAULTS)
    address.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(_BACKLOG)
    server = Server(engine, listener, password)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    threading.Thread(target=server.serve, name="accept", daemon=True).start()
    stop.wait()
    server.stop(STOP_BOUND_S)
    os._exit(0)  # everything acknowledged is on the disk; waiting for merges would only make the stop slow


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
