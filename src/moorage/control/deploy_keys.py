"""Repositories over SSH, with a deploy key.

The platform itself speaks SSH, to a checked address and a server whose key is pinned. Git gets only a socket with the
server's data of one repository. It runs as a user without rights, and has neither the key nor the SSH connection.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from moorage.kernel import pipes
from moorage.kernel.addresses import Address
from moorage.kernel.errors import MoorageError

if TYPE_CHECKING:
    import asyncssh

PORT = 22
NEEDS_KEY = "needs an integration of the kind ssh, which has a deploy key and knows the keys of the host"
_USER = "git"
_CONNECT_S = 20.0
_READ_BYTES = 64 * 1024
_LAST_WORDS = 500
# A line of `ssh-keyscan`, with or without the host.
_HOST_KEY = re.compile(
    r"(?:[^\s#]\S* )?((?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/=]{20,4000})"
)


class SshError(MoorageError):
    """The server of a repository cannot be reached, has another key than the pinned ones, or refuses the deploy key."""

    status = 400
    code = "fetch_failed"


@dataclass(frozen=True)
class DeployKey:
    """A private key for the repositories at `base_url`, and the pinned host keys, of which the server must have one."""

    base_url: str
    private_key: str = field(repr=False)
    host_keys: Sequence[str]


def make_key_pair(comment: str) -> tuple[str, str]:
    """Return a private key, and the public key in the format that forges accept."""
    import asyncssh  # imported here: few installations use it, and the import is slow

    key = asyncssh.generate_private_key("ssh-ed25519", comment)
    return key.export_private_key().decode(), key.export_public_key().decode().strip()


def read_host_keys(lines: Sequence[str]) -> list[str]:
    """Return the keys in lines of `ssh-keyscan`, without the host. Raises ValueError."""
    import asyncssh  # as above

    found = [_HOST_KEY.fullmatch(line.strip()) for line in lines if line.strip() and not line.startswith("#")]
    keys = [match[1] for match in found if match]
    if not keys or len(keys) != len(found):
        raise ValueError("must be lines of ssh-keyscan, such as: git.example.com ssh-ed25519 AAAA…")
    try:
        for key in keys:
            asyncssh.import_public_key(key)
    except asyncssh.KeyImportError as error:
        raise ValueError(f"a key of the host cannot be read: {error}") from None
    return keys


@asynccontextmanager
async def upload_pack(key: DeployKey, url: str, address: Address) -> AsyncIterator[socket.socket]:
    """Yield a socket whose other end is the server's upload-pack of the repository.

    Raises SshError, also when the body of the context fails and the server has given a reason.
    """
    import asyncssh  # as above

    parsed = urlsplit(url)
    ours, gits = socket.socketpair()
    with ours, gits:
        try:
            async with await _connect(key, parsed, address) as connection:
                command = f"git-upload-pack {shlex.quote(_path_of(parsed))}"
                server: asyncssh.SSHClientProcess[bytes] = await connection.create_process(command, encoding=None)
                carrying = asyncio.create_task(_carry(ours, server))
                try:
                    yield gits
                except MoorageError as error:
                    if said := await _last_words(server):
                        raise SshError(f"{error}. The server of the repository said: {said}") from None
                    raise
                finally:
                    carrying.cancel()
                    await asyncio.gather(carrying, return_exceptions=True)
        except asyncssh.HostKeyNotVerifiable:
            raise SshError(f"The server at {parsed.hostname} has none of the pinned host keys") from None
        except asyncssh.PermissionDenied:
            raise SshError(f"The server at {parsed.hostname} does not take the deploy key") from None
        except (asyncssh.Error, TimeoutError, OSError) as error:
            said = getattr(error, "reason", None) or getattr(error, "strerror", None) or "it does not answer"
            raise SshError(f"The server at {parsed.hostname} cannot be asked over SSH: {said}") from None


async def _connect(key: DeployKey, url: SplitResult, address: Address) -> asyncssh.SSHClientConnection:
    """Connect without this machine's own SSH settings: no configuration, agent, keys or known hosts."""
    import asyncssh  # as above

    pinned = [asyncssh.import_public_key(line) for line in key.host_keys]
    own: dict[str, Any] = {"agent_path": None, "config": None, "preferred_auth": "publickey"}
    return await asyncssh.connect(
        str(address),
        url.port or PORT,
        username=unquote(url.username or _USER),
        client_keys=[asyncssh.import_private_key(key.private_key)],
        known_hosts=(pinned, [], []),
        connect_timeout=_CONNECT_S,
        login_timeout=_CONNECT_S,
        **own,
    )


def _path_of(url: SplitResult) -> str:
    """Return the path in git's form for a server: `/~user/…` is below that user's home."""
    path = unquote(url.path)
    return path.removeprefix("/") if path.startswith("/~") else path


async def _carry(ours: socket.socket, server: asyncssh.SSHClientProcess[bytes]) -> None:
    reader, writer = await asyncio.open_connection(sock=ours)

    async def send(data: bytes) -> None:
        server.stdin.write(data)
        await server.stdin.drain()

    async def receive() -> bytes | None:
        return await server.stdout.read(_READ_BYTES) or None

    try:
        await pipes.pipe(reader, writer, send, receive)
    finally:
        await pipes.close(writer)


async def _last_words(server: asyncssh.SSHClientProcess[bytes]) -> str:
    try:
        async with asyncio.timeout(1):
            said = await server.stderr.read(_LAST_WORDS)
    except TimeoutError:
        return ""
    return said.decode(errors="replace").strip()
