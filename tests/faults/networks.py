"""A network between two machines that can be cut: data vanishes, and no side is notified."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_READ_BYTES = 65536


class Network:
    """Forwards connections to a port of this machine. While it is cut, bytes and new connections vanish, and no
    connection is closed.
    """

    def __init__(self, port: int, to: int) -> None:
        self._to = to
        self._carries = threading.Event()
        self._carries.set()
        self._listening = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._carries.clear()

    def heal(self) -> None:
        """Accept new connections. Earlier ones stay dead, as after a change of a machine between the two."""
        self._carries.set()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        if not self._carries.is_set():
            return self._vanish(near)
        with suppress(OSError), near, socket.create_connection(("127.0.0.1", self._to)) as far:
            back = threading.Thread(target=self._carry, args=(far, near), daemon=True)
            back.start()
            self._carry(near, far)
            back.join()
        return None

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_READ_BYTES):
                if not self._carries.is_set():
                    self._vanish(source)
                    return
                target.sendall(data)
        if self._carries.is_set():
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)

    def _vanish(self, source: socket.socket) -> None:
        """Read all data for ever, and pass nothing on."""
        with suppress(OSError):
            while source.recv(_READ_BYTES):
                pass


@contextmanager
def make_network(port: int, to: int) -> Iterator[Network]:
    network = Network(port, to)
    try:
        yield network
    finally:
        network.close()
