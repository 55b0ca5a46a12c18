"""`python -m moorage.embedded.chdb_server DIRECTORY SOCKET DATABASE USER`: what embedded/clickhouse.py starts.

DIRECTORY has `password`, `data` and `spool`; DATABASE is made when it is not there. USER is the number of the user to
become when started as root: all code is loaded before that, since it may lie where that user cannot read.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

# chDB would load it for results that nobody asks for here, and 40 MB are much in a process that is to be small.
sys.modules["pyarrow"] = None  # type: ignore[assignment]
from moorage.embedded.chdb_server.engine import ChdbEngine  # noqa: E402 - after the line above
from moorage.embedded.chdb_server.idle_merges import IdleMerges  # noqa: E402 - as above
from moorage.embedded.chdb_server.server import Server  # noqa: E402 - as above

STOP_BOUND_S = 5.0
_BACKLOG = 128

# Of each statement, unless it says otherwise.
_DEFAULTS = (
    ("max_memory_usage", "600000000"),
    # What an answer is made of is mostly asked in two statements at once, and inserts and merges go on beside them.
    ("max_threads", str(max(1, (os.cpu_count() or 1) // 2))),
    ("max_execution_time", "60"),
    # The files are local. By another thread, each read would cost two switches; and the columns of a granule lie side by
    # side, so that larger reads bring what nobody asked for.
    ("local_filesystem_read_method", "pread"),
    ("max_read_buffer_size_local_fs", "16384"),
    # A client may send what happened long ago, a run of each month.
    ("max_partitions_per_insert_block", "0"),
)


def main(directory: Path, address: Path, database: str, user: int) -> None:
    password = (directory / "password").read_text()
    configuration = (Path(__file__).parent / "config.xml").read_bytes()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    engine = _open(directory, database, configuration)
    server = Server(engine, _listen(address), password)
    asked_to_stop = SimpleQueue[int]()  # not an event: one that is asked twice at once would wait for its own lock
    for number in (signal.SIGTERM, signal.SIGINT):  # now, since the library sets its own when it opens
        signal.signal(number, lambda number, _: asked_to_stop.put(number))
    threading.Thread(target=server.serve, name="accept", daemon=True).start()
    IdleMerges(engine).start()
    asked_to_stop.get()
    server.stop(STOP_BOUND_S)
    address.unlink(missing_ok=True)
    os._exit(0)  # what was acknowledged is on the disk; an orderly end would wait for merges


def _open(directory: Path, database: str, configuration: bytes) -> ChdbEngine:
    os.chdir(directory)  # relative paths: whatever characters the directory's name has, the library's options survive
    Path("spool/config.xml").write_bytes(configuration)
    options = "config-file=spool/config.xml&log-level=error&logger.log=spool/errors.log&logger.size=5M&logger.count=1"
    return ChdbEngine(f"data?{options}", database, directory / "spool", _DEFAULTS)


def _listen(address: Path) -> socket.socket:
    address.unlink(missing_ok=True)  # left by a process that was killed: we have its lock, so it lives no more
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(_BACKLOG)
    return listener


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
