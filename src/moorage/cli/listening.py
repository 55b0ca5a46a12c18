"""The listening socket of a server. It is opened first, so that an address in use is reported at once."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moorage.kernel.errors import StartupError

_BACKLOG = 2048


@dataclass(frozen=True)
class Address:
    """A TCP address or the path of a unix socket."""

    host: str
    port: int
    uds: Path | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return str(self.uds) if self.uds else f"http://{host}:{self.port}"


@contextmanager
def listening_on(address: Address) -> Iterator[socket.socket]:
    """Yield the listening socket until the context ends. Raises StartupError when the address is not available."""
    with _bound(address) as listening:
        try:
            yield listening
        finally:
            if address.uds is not None:
                address.uds.unlink(missing_ok=True)


def _bound(address: Address) -> socket.socket:
    listening = socket.socket(_family(address))
    try:
        if address.uds is not None:
            _clear_away(address.uds)
            listening.bind(str(address.uds))
        else:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address.host, address.port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        in_use = error.errno == errno.EADDRINUSE
        advice = "Choose another --host, --port or --uds."
        if in_use:
            advice = f"Is another server running there? Stop it, or {advice[0].lower()}{advice[1:]}"
        raise StartupError(f"Cannot listen on {address}: {error.strerror or error}. {advice}") from error
    return listening


def _family(address: Address) -> socket.AddressFamily:
    if address.uds is not None:
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET


def _clear_away(path: Path) -> None:
    """Remove a socket that nobody listens on, left by a process that was killed."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(path)) != 0:
            path.unlink()
