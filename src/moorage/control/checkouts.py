"""Fetching the source of a revision: a commit of a git repository, or an uploaded tarball.

Both come from strangers. A git URL may lead into the network of this server, name another program to run (`ext::`), or
be read as an option; a tarball may write outside of its folder, or unpack to a thousand times its size. Each refusal is
an InvalidRequestError whose text a user can act on; a failed fetch is a FetchError with git's last lines.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import socket
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from urllib.parse import SplitResult, unquote, urlsplit

from moorage.control.deploy_keys import NEEDS_KEY, DeployKey, SshError, upload_pack
from moorage.embedded import processes
from moorage.kernel.addresses import Address, Resolve, blocked_range, resolve_name
from moorage.kernel.errors import EngineError, InvalidRequestError, MoorageError

_LOOKUP_S = 5.0
_FETCH_S = 300.0
_WATCH_S = 0.5
_STOP_S = 5.0
_LAST_WORDS = 2000
_URL_LENGTH_MAX = 2048
_FULL_COMMIT = re.compile(r"[0-9a-f]{40}")
# git's own rules for names of references (git-check-ref-format); also no leading dash.
_BAD_REF = re.compile(r"[\x00-\x20~^:?*\[\\\x7f]|\.\.|@\{|//|^[-/.]|/$|/\.|\.lock(/|$)|\.$|^@$")
_PORTS = {"https": 443, "http": 80}
# Other protocols are refused. For git://, git itself would look the name up again, after the check.
PROTOCOLS = frozenset({*_PORTS, "file", "ssh"})


class FetchError(MoorageError):
    """The source of a revision could not be fetched: no such repository, branch or commit, or it is too large."""

    status = 400
    code = "fetch_failed"


@dataclass(frozen=True)
class Limits:
    """Limits of one checkout."""

    bytes_max: int = 1024 * 2**20
    files_max: int = 50_000
    file_bytes_max: int = 512 * 2**20


@dataclass(frozen=True)
class GitPolicy:
    """Rules for git URLs: `protocols` are among PROTOCOLS. Anything but https on a public address needs a setting."""

    protocols: Collection[str] = ("https",)
    private_addresses: bool = False
    resolve: Resolve = resolve_name

    async def checked(self, url: str) -> list[Address]:
        """Return the checked addresses of the repository's host, or none for a repository on this disk. Raises
        InvalidRequestError.
        """
        parsed = self._parsed(url)
        if parsed.scheme == "file":
            return []
        addresses = await self._addresses(parsed.hostname or "")
        self._check_addresses(addresses)
        return addresses

    def check_url(self, url: str) -> None:
        """Check a URL without looking its name up, so that a caller gets an answer at once. Raises
        InvalidRequestError.
        """
        try:
            address = ip_address(self._parsed(url).hostname or "")
        except ValueError:
            return
        self._check_addresses([address])

    def _check_addresses(self, addresses: Iterable[Address]) -> None:
        if not self.private_addresses:
            for place in filter(None, map(blocked_range, addresses)):
                raise InvalidRequestError(
                    f"The host of the repository is in the {place} IP range, which is not allowed"
                )

    def _parsed(self, url: str) -> SplitResult:
        if len(url) > _URL_LENGTH_MAX or not url.isprintable() or " " in url or url.startswith("-"):
            raise InvalidRequestError("The repository URL is not a valid URL")
        try:
            parsed = urlsplit(url)
            _ = parsed.port  # raises for an invalid port
        except ValueError:
            raise InvalidRequestError("The repository URL is not a valid URL") from None
        if "::" in url.split("/", 1)[0] or parsed.scheme not in PROTOCOLS.intersection(self.protocols):
            raise InvalidRequestError(
                f"The repository URL must begin with {' or '.join(f'{p}://' for p in self.protocols)}"
            )
        if parsed.password is not None or (parsed.username is not None and parsed.scheme != "ssh"):
            raise InvalidRequestError("The repository URL must not hold a user name or password")
        if not parsed.hostname and parsed.scheme != "file":
            raise InvalidRequestError("The repository URL names no host")
        return parsed

    async def _addresses(self, host: str) -> list[Address]:
        try:
            async with asyncio.timeout(_LOOKUP_S):
                return await self.resolve(host)
        except (OSError, UnicodeError):  # a time-out is an OSError too
            raise FetchError(f"The host of the repository, {host}, cannot be found") from None


def check_ref(ref: str) -> None:
    """Check a ref's name. Raises InvalidRequestError for a name that git does not allow for a branch, tag or commit."""
    if not ref or len(ref) > 255 or _BAD_REF.search(ref):
        raise InvalidRequestError(f"{ref!r} is not the name of a branch, tag or commit")


def candidates(ref: str) -> list[str]:
    """Return the refs to ask the remote for, in order: a short name may be a branch or a tag."""
    if ref.startswith("refs/") or _FULL_COMMIT.fullmatch(ref):
        return [ref]
    return [f"refs/heads/{ref}", f"refs/tags/{ref}"]


@dataclass(frozen=True)
class Credential:
    """A header that git sends only to addresses below `base_url`. It is passed in git's environment, which only git's
    user can read, and never in a command line, a URL or a file.
    """

    base_url: str
    header: str = field(repr=False)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{self.base_url}/.extraHeader",
            "GIT_CONFIG_VALUE_0": self.header,
        }


# git's SSH connection is the socket that it inherits as file 3, see `deploy_keys`. The file number has one digit, which
# every shell can read. When one of the two readers ends, the other one ends too: git sees the end of the connection,
# and no process is left behind.
_SSH_COMMAND = "exec sh -c 'exec 5<&0; cat <&3 & exec >&-; cat <&5 >&3; kill $! 2>/dev/null; exit 0' --"
_GIVES_SOCKET = 'exec 3<&0; exec "$@" </dev/null'


def git_environment(
    home: Path, protocols: Collection[str], credential: Credential | DeployKey | None = None
) -> dict[str, str]:
    """Return the environment of git: no prompts, no configuration of the host, and only the given protocols."""
    return {
        **(credential.environment if isinstance(credential, Credential) else {}),
        "GIT_SSH_COMMAND": _SSH_COMMAND,
        "GIT_SSH_VARIANT": "ssh",
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ALLOW_PROTOCOL": ":".join(protocols),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_TEMPLATE_DIR": "",
        "LC_ALL": "C",
    }


_HARDENED = (
    *("-c", "protocol.ext.allow=never"),
    *("-c", "http.followRedirects=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.symlinks=true"),
    *("-c", "fetch.fsckObjects=true"),
    *("-c", "submodule.recurse=false"),
    *("-c", "safe.directory=*"),
)


@dataclass(frozen=True)
class RunsAs:
    """The user that git runs as, and the wrapper of its command line (`Isolation.wrapped`). Default: the platform's own
    user.
    """

    uid: int | None = None
    wrapped: Callable[[Sequence[str], Sequence[Path], Sequence[Path]], list[str]] = lambda argv, _, __: list(argv)


_UPLOAD_PACK = "--upload-pack=git -c safe.directory='*' upload-pack"  # for file:// repositories of other users
_FETCH = (*("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules"), _UPLOAD_PACK)


async def fetch_commit(
    url: str,
    ref: str,
    into: Path,
    policy: GitPolicy,
    limits: Limits = Limits(),
    runs_as: RunsAs = RunsAs(),
    credential: Credential | DeployKey | None = None,
) -> str:
    """Check out the newest commit of a branch or tag, or a commit by its full name, into a new folder, and return its
    sha.

    Afterwards the folder belongs to the platform's user, whichever user git ran as. Submodules are not fetched. Raises
    InvalidRequestError for a URL or name that is not allowed, and FetchError when the fetch fails; then the folder is
    removed.
    """
    check_ref(ref)
    remote = await _remote(url, policy, credential)
    await asyncio.to_thread(into.mkdir, parents=True)
    try:
        if runs_as.uid is not None:
            os.chown(into, runs_as.uid, runs_as.uid)
        git = _Git(into, git_environment(into, policy.protocols, credential), limits, runs_as, _folder_of(url))
        await git.run("init", "--quiet")
        await _fetch_first(git, remote, candidates(ref))
        await git.run("checkout", "--quiet", "--detach", "FETCH_HEAD")
        commit = await git.run("rev-parse", "HEAD")
        await asyncio.to_thread(shutil.rmtree, into / ".git")
        if runs_as.uid is not None:
            await asyncio.to_thread(_take_back, into)
        await asyncio.to_thread(check_links, into)
    except BaseException:
        shutil.rmtree(into, ignore_errors=True)
        raise
    return commit.strip()


async def newest_commit(
    url: str,
    ref: str,
    folder: Path,
    policy: GitPolicy,
    runs_as: RunsAs = RunsAs(),
    credential: Credential | DeployKey | None = None,
) -> str | None:
    """Return the newest commit of a branch without fetching it, or None when there is no such branch.

    `folder` is git's own. Raises InvalidRequestError and FetchError, as `fetch_commit` does.
    """
    check_ref(ref)
    remote = await _remote(url, policy, credential)
    if runs_as.uid is not None:
        os.chown(folder, runs_as.uid, runs_as.uid)
    environment = git_environment(folder, policy.protocols, credential)
    git = _Git(folder, environment, Limits(), runs_as, _folder_of(url))
    branch = ref if ref.startswith("refs/") else f"refs/heads/{ref}"
    told = await git.ask(remote, "ls-remote", _UPLOAD_PACK, "--", url, branch)
    commits = [line.split("\t")[0] for line in told.splitlines() if line.endswith(f"\t{branch}")]
    return commits[0] if commits and _FULL_COMMIT.fullmatch(commits[0]) else None


def _folder_of(url: str) -> list[Path]:
    """Return the folders that git must see: the repository, if the URL names one on this disk."""
    parsed = urlsplit(url)
    return [Path(unquote(parsed.path))] if parsed.scheme == "file" else []


def _take_back(into: Path) -> None:
    """Give the checkout to the platform's user before it is checked. The user that git ran as, whose agent may be
    running, can then put no links into it.
    """
    try:
        processes.give_tree(into, os.geteuid())
    except EngineError:
        raise FetchError("The checkout was changed while it was fetched") from None


async def _fetch_first(git: _Git, remote: _Remote, refs: list[str]) -> None:
    for ref in refs:
        try:
            await git.ask(remote, *_FETCH, "--", remote.url, ref)
        except FetchError as error:
            if ref == refs[-1] or "couldn't find remote ref" not in str(error):
                raise
        else:
            return


@dataclass(frozen=True)
class _Remote:
    """A repository whose address was checked. `key` is for a repository over SSH."""

    url: str
    addresses: Sequence[Address]
    key: DeployKey | None

    @property
    def pinned(self) -> list[str]:
        """Return the options that make git use the checked address: otherwise git looks the name up again, and may get
        another address.
        """
        url = urlsplit(self.url)
        port = url.port or _PORTS.get(url.scheme)
        if not self.addresses or port is None:
            return []
        return ["-c", f"http.curloptResolve={url.hostname}:{port}:{','.join(map(str, self.addresses))}"]


async def _remote(url: str, policy: GitPolicy, credential: Credential | DeployKey | None) -> _Remote:
    addresses = await policy.checked(url)
    key = credential if isinstance(credential, DeployKey) else None
    if urlsplit(url).scheme == "ssh" and key is None:
        raise FetchError(f"A repository over SSH {NEEDS_KEY}")
    return _Remote(url, addresses, key)


class _Git:
    """Runs git for one checkout, with limits on its time and on what it may write."""

    def __init__(
        self, folder: Path, environment: dict[str, str], limits: Limits, runs_as: RunsAs, readable: list[Path]
    ) -> None:
        self._folder = folder
        self._readable = readable
        self._environment = environment
        self._limits = limits
        self._runs_as = runs_as

    async def ask(self, remote: _Remote, *arguments: str) -> str:
        """Run git with access to the repository. Raises as `run` does."""
        if remote.key is None:
            return await self.run(*remote.pinned, *arguments)
        try:
            async with upload_pack(remote.key, remote.url, remote.addresses[0]) as connection:
                return await self.run(*arguments, connection=connection)
        except SshError as error:
            raise FetchError(str(error)) from None

    async def run(self, *arguments: str, connection: socket.socket | None = None) -> str:
        """Run git and return its output. Raises FetchError with its last lines."""
        process = await asyncio.to_thread(self._start, arguments, connection)
        if connection is not None:
            connection.close()  # only git keeps it open, so the other end notices when git has ended
        reading = asyncio.create_task(asyncio.to_thread(process.communicate))
        try:
            async with asyncio.timeout(_FETCH_S):
                await self._watch(reading)
        except TimeoutError:
            raise FetchError(f"The repository was not fetched within {_FETCH_S:.0f} s") from None
        finally:
            _kill_group(process)
            await asyncio.wait([reading], timeout=_STOP_S)
        out, errors = reading.result()
        if process.returncode:
            raise FetchError(f"git: {errors.decode(errors='replace').strip()[-_LAST_WORDS:]}")
        return out.decode(errors="replace")

    def _start(self, arguments: Sequence[str], connection: socket.socket | None) -> subprocess.Popen[bytes]:
        """Start git. Uses `subprocess`, since uvloop cannot start a process as another user."""
        uid = self._runs_as.uid
        command = ["git", *_HARDENED, *arguments]
        if connection is not None:
            command = ["sh", "-c", _GIVES_SOCKET, "--", *command]
        process = subprocess.Popen(
            self._runs_as.wrapped(command, [self._folder], self._readable),
            cwd=self._folder,
            env=self._environment,
            stdin=connection.fileno() if connection else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            umask=0o077,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
        with suppress(ProcessLookupError, PermissionError):  # it may have ended already
            size = self._limits.file_bytes_max
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, size))
        return process

    async def _watch(self, reading: asyncio.Task[tuple[bytes, bytes]]) -> None:
        """Wait until git ends. Raises FetchError when the folder outgrows its limit."""
        while not reading.done():
            if await asyncio.to_thread(_tree_bytes, self._folder) > self._limits.bytes_max:
                raise FetchError(f"The repository is larger than {self._limits.bytes_max // 2**20} MB")
            await asyncio.wait([reading], timeout=_WATCH_S)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill git and its helper processes, so that none is left that still writes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)


def _tree_bytes(root: Path) -> int:
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with suppress(OSError):  # git removes files that it no longer needs
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - twice as fast on large trees
    return total


def check_links(root: Path) -> None:
    """Check the tree's links. Raises InvalidRequestError when a symbolic link leads out of the tree."""
    bound = root.resolve()
    for path in _links(root):
        if not path.resolve().is_relative_to(bound):
            raise InvalidRequestError(f"{path.relative_to(root)} is a link that leaves the source")


def _links(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder, name)
            if path.is_symlink():
                yield path


def inside(root: Path, relative: str, what: str) -> Path:
    """Return a path in a checkout that a configuration names. Raises InvalidRequestError when it leaves the
    checkout.
    """
    bound = root.resolve()
    if "\0" in relative:
        raise InvalidRequestError(f"{what} is not a valid path")
    path = (bound / relative).resolve()
    if PurePosixPath(relative).is_absolute() or not path.is_relative_to(bound):
        raise InvalidRequestError(f"{what} {relative!r} leaves the source")
    return path


def unpack(archive: Path, into: Path, limits: Limits = Limits()) -> None:
    """Unpack an uploaded tar.gz into a new folder.

    Raises InvalidRequestError for links, devices, paths that leave the folder, or more than the limits allow; then the
    folder is removed.
    """
    into.mkdir(parents=True)
    try:
        with tarfile.open(archive, "r|gz") as tar:
            _unpack_members(tar, into, limits)
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        shutil.rmtree(into, ignore_errors=True)
        if isinstance(error, OSError) and error.errno:
            raise  # the host's fault, such as a full disk
        raise InvalidRequestError("The upload is not a tar.gz archive, or is cut short") from None
    except BaseException:
        shutil.rmtree(into, ignore_errors=True)
        raise


def pack(source: Path, archive: Path) -> None:
    """Pack a fetched source, whose links have been checked, as a tar.gz that `unpack` accepts. A link to a file is
    packed as a file.

    Raises InvalidRequestError for links to folders, which may form a cycle.
    """
    with tarfile.open(archive, "x:gz", dereference=True) as tar:
        for folder, folders, names in os.walk(source):
            for name in folders:
                if Path(folder, name).is_symlink():
                    raise InvalidRequestError(
                        f"{Path(folder, name).relative_to(source)} is a link to a folder, which no listener takes"
                    )
            for path in (Path(folder, name) for name in names):
                tar.add(path, path.relative_to(source), recursive=False)


def _unpack_members(tar: tarfile.TarFile, into: Path, limits: Limits) -> None:
    unpacked_bytes = 0
    for count, member in enumerate(tar, 1):
        unpacked_bytes += member.size
        if count > limits.files_max:
            raise InvalidRequestError(f"The upload holds more than {limits.files_max} files")
        if unpacked_bytes > limits.bytes_max:
            raise InvalidRequestError(f"The upload unpacks to more than {limits.bytes_max // 2**20} MB")
        if not (member.isreg() or member.isdir()):
            raise InvalidRequestError(f"{member.name!r} in the upload is neither a file nor a folder")
        try:
            tar.extract(member, into, filter="data")
        except (tarfile.FilterError, UnicodeEncodeError, ValueError):
            raise InvalidRequestError(f"{member.name!r} in the upload is a path that leaves its folder") from None
