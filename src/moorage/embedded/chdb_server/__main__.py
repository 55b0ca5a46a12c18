"""`python -m moorage.embedded.chdb_server DIRECTORY SOCKET DATABASE USER`, started by embedded/clickhouse.py.

DIRECTORY has `password`, `data` and `spool`; DATABASE is made if it does not exist. If the process was started as root,
it changes to the user with the number USER. It loads all code before that, since that user may be unable to read the
code.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

# chDB would load pyarrow for results that we never request. Its 40 MB are too much for a process that has to be small.
sys.modules["pyarrow"] = None  # type: ignore[assignment]
from moorage.embedded.chdb_server.engine import ChdbEngine  # noqa: E402 - after the line above
from moorage.embedded.chdb_server.idle_merges import IdleMerges  # noqa: E402 - as above
from moorage.embedded.chdb_server.server import Server  # noqa: E402 - as above

STOP_BOUND_S = 5.0
_BACKLOG = 128

# Applies to each statement that does not set another.
_DEFAULTS = (
    ("max_memory_usage", "600000000"),
    # Most answers need two concurrent statements, and inserts and merges run beside them.
    ("max_threads", str(max(1, (os.cpu_count() or 1) // 2))),
    ("max_execution_time", "60"),
    # The files are local. Reading in another thread would cost two switches per read. The columns of a granule are
    # adjacent, so larger reads fetch data that nobody asked for.
    ("local_filesystem_read_method", "pread"),
    ("max_read_buffer_size_local_fs", "16384"),
    # A client may send old data, such as one run of each month.
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
    asked_to_stop = SimpleQueue[int]()  # not an Event: a second signal during `set` would wait for its own lock
    for number in (signal.SIGTERM, signal.SIGINT):  # only now: the library sets its own handlers when it opens
        signal.signal(number, lambda number, _: asked_to_stop.put(number))
    threading.Thread(target=server.serve, name="accept", daemon=True).start()
    IdleMerges(engine).start()
    asked_to_stop.get()
    server.stop(STOP_BOUND_S)
    address.unlink(missing_ok=True)
    os._exit(0)  # acknowledged data is on the disk; a clean end would wait for merges


def _open(directory: Path, database: str, configuration: bytes) -> ChdbEngine:
    os.chdir(directory)  # relative paths, so that no character of the directory's name reaches the options
    Path("spool/config.xml").write_bytes(configuration)
    options = "config-file=spool/config.xml&log-level=error&logger.log=spool/errors.log&logger.size=5M&logger.count=1"
    return ChdbEngine(f"data?{options}", database, directory / "spool", _DEFAULTS)


def _listen(address: Path) -> socket.socket:
    address.unlink(missing_ok=True)  # left by a killed process: we have its lock, so it is dead
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(_BACKLOG)
    return listener


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
