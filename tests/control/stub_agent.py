"""A stub in place of an agent's environment: a program that is started as an agent, and does what its tests ask for."""

from __future__ import annotations

from uuid import UUID

from moorage.control.places import Build, Place
from moorage.embedded import processes

_PROGRAM = """#!/usr/bin/python3 -u
import os, signal, socket, sys, threading, time
signal.signal(signal.SIGURG, lambda *_: print("it takes no more", flush=True))
signal.signal(signal.SIGCONT, lambda *_: print("it goes on", flush=True))
if os.environ.get("FAILS"):
    print("Traceback (most recent call last):\\nImportError: no module named nowhere", file=sys.stderr)
    sys.exit(3)
time.sleep(float(os.environ.get("STARTS_AFTER_S", 0)))
listening = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
print("it serves", flush=True)
hoard = []
def fork_idle():
    for count in range(4000):
        try:
            if not os.fork():
                os.setsid()
                time.sleep(600)
        except OSError:
            return count
    return 4000
def answer(connection):
    path = connection.recv(65536).split()[1].decode()
    if path == "/crash":
        os._exit(1)
    if path == "/give-up":
        os._exit(8)
    if path == "/eat-more" or (path == "/eat" and not hoard):
        hoard.append(b"x" * 150 * 2**20)
    if path == "/slow":
        time.sleep(2.5)
    known = {"/env": repr(dict(os.environ)), "/uid": str(os.getuid()), "/pid": str(os.getpid()), "/eat": str(os.getpid())}
    if path == "/processes":
        known[path] = repr([name for name in os.listdir("/proc") if name.isdigit()])
    if path.startswith("/fill/"):
        with open(os.path.join(os.environ["HOME"], "filled"), "wb") as file:
            file.write(b"x" * int(path.rpartition("/")[2]))
    if path.startswith("/reach/"):
        host, port = path.split("/")[2:]
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            known[path] = "reached"
        except OSError as error:
            known[path] = type(error).__name__
    if path == "/spin":
        began, used = time.time(), time.process_time()
        while time.time() - began < 2:
            pass
        known[path] = str((time.process_time() - used) / (time.time() - began))
    if path == "/forks":
        known[path] = str(fork_idle())
    body = known.get(path, os.environ["LANGSMITH_HOST_REVISION_ID"])
    head = f"HTTP/1.1 200 OK\\r\\nContent-Length: {len(body.encode())}\\r\\nConnection: close\\r\\n\\r\\n"
    connection.sendall((head + body).encode())
    connection.close()
def fork_workers(count):
    for _ in range(count):
        if not os.fork():
            return
    while os.wait():
        if not os.fork():
            return
if (workers := int(sys.argv[sys.argv.index("--workers") + 1])) > 1:
    fork_workers(workers)
while not os.environ.get("SILENT"):
    threading.Thread(target=answer, args=(listening.accept()[0],)).start()
time.sleep(600)
"""


def make_stub_build(place: Place, build_id: UUID) -> None:
    """Make a complete build with the stub in place of Python."""
    place.make()
    folder = place.builds / f"{build_id}.stub"
    (folder / "environment/bin").mkdir(parents=True)
    (folder / "source").mkdir()
    (folder / "source/langgraph.json").write_text("{}")
    python = folder / "environment/bin/python"
    python.write_text(_PROGRAM)
    python.chmod(0o755)
    if processes.is_root():
        processes.give_tree(folder, place.uid)
    place.write_build(build_id, Build(folder, "langgraph.json", None))
