"""Keeps the embedded PostgreSQL of a home up until its standard input ends, which it also does when the benchmark dies.

A process of its own, so that the server which is measured adopts a PostgreSQL that is not its child. Prints one line of
JSON: the conninfo, and the pid whose process tree is PostgreSQL.
"""

import json
import sys
from pathlib import Path

from moorage.embedded.postgres import EmbeddedPostgres


def main() -> None:
    home = Path(sys.argv[1])
    engine = EmbeddedPostgres(home)
    conninfo = engine.start()
    try:
        pid = int((home / "postgres" / "data" / "postmaster.pid").read_text().partition("\n")[0])
        print(json.dumps({"conninfo": conninfo, "pid": pid}), flush=True)
        sys.stdin.read()
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
