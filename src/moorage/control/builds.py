"""Builds: from an order to a folder with its source and an environment in which its agent can run.

A build is complete when its mark is written. A killed build and the next attempt use different folder names, and the
leftover is swept. Builds run strangers' code. So each build runs as the deployment's own user, and gets from the
platform's environment only the variables that it needs to reach the network.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from moorage.control.agent_wheel import agent_wheel
from moorage.control.causes import build_failure
from moorage.control.checkouts import GitPolicy, Limits, check_links, fetch_commit, inside, pack, unpack
from moorage.control.environments import index_variables, plan_environment, read_build_config
from moorage.control.git_users import CredentialOf, git_user
from moorage.control.isolation import Isolation
from moorage.control.places import Build, Place
from moorage.control.records.orders import Order
from moorage.control.records.states import Source
from moorage.embedded import processes
from moorage.kernel.errors import InvalidRequestError, MoorageError

_TOLD_LINES = 30
_LINE_BYTES = 16 * 1024
_STOP_S = 5.0
# Variables for reaching the network; none of them reveals anything about the platform.
PROXY_VARIABLES = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
)
NETWORK_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", *PROXY_VARIABLES)
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"

Say = Callable[[str], None]


class BuildError(MoorageError):
    """The build failed because of its source or configuration. The text is shown to the deployment's owner."""

    status = 400
    code = "build_failed"


@dataclass(frozen=True)
class BuildRules:
    """Settings of builds. `program` is the path of uv; `wheel` is the agent server that each environment gets."""

    home: Path
    program: Path
    wheel: Path
    isolation: Isolation
    git: GitPolicy
    timeout_s: float = 900
    limits: Limits = field(default_factory=Limits)


class Builds:
    """The builds of this machine.

    `fetch_upload` writes an uploaded archive to a file. `credential_of` returns the credential with which git reads the
    repository of a `source_config` in a workspace.
    """

    def __init__(
        self, rules: BuildRules, fetch_upload: Callable[[str, Path], Awaitable[None]], credential_of: CredentialOf
    ) -> None:
        self._rules = rules
        self._fetch_upload = fetch_upload
        self._credential_of = credential_of

    async def build(self, order: Order, secrets: Mapping[str, str], say: Say) -> Build:
        """Build the order, or return its build if it is complete already. `say` gets the output, line by line.

        Raises BuildError, or another MoorageError whose text the owner may read.
        """
        place = Place(self._rules.home, order.deployment_number)
        if built := await asyncio.to_thread(place.read_build, order.build_id):
            return built
        folder = place.builds / f"{order.build_id}.{uuid.uuid4().hex[:8]}"
        await asyncio.to_thread(_make_folder, place, folder)
        try:
            async with asyncio.timeout(self._rules.timeout_s):
                built = await self._build(order, place, folder, secrets, _Told(say))
        except TimeoutError:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise BuildError(f"The build took longer than {self._rules.timeout_s:.0f} s") from None
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise
        await asyncio.to_thread(place.write_build, order.build_id, built)
        return built

    async def pack(self, order: Order, say: Say) -> tuple[Path, str | None]:
        """Fetch the source as an archive, with its commit if it has one, for a listener that builds it on its machine.
        The caller removes the archive. Raises as `build` does.
        """
        place = Place(self._rules.home, order.deployment_number)
        folder = place.builds / f"{order.build_id}.{uuid.uuid4().hex[:8]}"
        await asyncio.to_thread(_make_folder, place, folder)
        archive = place.run / f"{order.build_id}.{uuid.uuid4().hex[:8]}.tar.gz"
        try:
            commit = await self._fetch(order, place, folder / "source", _Told(say))
            await asyncio.to_thread(pack, folder / "source", archive)
        except BaseException:
            archive.unlink(missing_ok=True)
            raise
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return archive, commit

    async def _build(self, order: Order, place: Place, folder: Path, secrets: Mapping[str, str], told: _Told) -> Build:
        source = folder / "source"
        commit = await self._fetch(order, place, source, told)
        config = order.source_revision_config.get("langgraph_config_path") or "langgraph.json"
        config_file = inside(source, config, "langgraph_config_path")
        keys, warnings = read_build_config(config_file)
        for warning in warnings:
            told.say(warning)
        plan = plan_environment(keys, config_file.parent, source, self._rules.wheel)
        await asyncio.to_thread(_give, place, folder)
        run = _Runs(self._rules, order, place, folder, index_variables(secrets), told)
        uv, interpreter = str(self._rules.program), plan.python or _own_python()
        told.say(f"Making an environment for {config}")
        await self._begin_environment(place, folder / "environment", interpreter, run)
        for export in plan.exports:
            await run.run([uv, *export])
        environment = str(folder / "environment" / "bin" / "python")
        await run.run([uv, "pip", "install", "--exact", "--upgrade", "--python", environment, *plan.install])
        # The variable, which holds the section as JSON, takes precedence over the file.
        has_auth = keys.auth or secrets.get("LANGGRAPH_AUTH", "null") not in {"", "null"}
        place_of_config = str(config_file.relative_to(source.resolve()))
        return Build(folder, place_of_config, commit, interpreter, "custom" if has_auth else "platform_keys")

    async def _begin_environment(self, place: Place, environment: Path, interpreter: str, run: _Runs) -> None:
        """Hard-link the previous build's environment, so that the installer changes only what has changed; without one,
        make a new environment.

        The links keep Python's compiled files: compiling, not the installation, is what slows a first start.
        """
        last = await asyncio.to_thread(place.newest_build, interpreter)
        try:
            if last is not None:
                await run.run(["cp", "-al", str(last.folder / "environment"), str(environment)])
                return
        except BuildError:  # the build was just removed, or the agent has made files in it unreadable
            await asyncio.to_thread(shutil.rmtree, environment, ignore_errors=True)
        # Relocatable: scripts find the environment that they are in, not the one that they were copied from.
        venv = [str(self._rules.program), "venv", "--quiet", "--relocatable"]
        await run.run([*venv, "--python", interpreter, str(environment)])

    async def _fetch(self, order: Order, place: Place, source: Path, told: _Told) -> str | None:
        if order.source is Source.INTERNAL_SOURCE:
            path = order.source_revision_config["source_tarball_path"]
            told.say("Fetching the uploaded source")
            archive = place.run / f"{order.build_id}.tar.gz"
            try:
                await self._fetch_upload(path, archive)
                await asyncio.to_thread(unpack, archive, source, self._rules.limits)
                await asyncio.to_thread(check_links, source)
            finally:
                archive.unlink(missing_ok=True)
            return None
        url = order.source_config["repo_url"]
        wanted = order.repo_commit_sha or order.source_revision_config["repo_ref"]
        told.say(f"Fetching {wanted} of {url}")
        credential = await self._credential_of(order.workspace_id, order.source_config)
        if order.source_config.get("integration_id") and credential is None:
            told.say("The integration of the deployment is not there any more: fetching without credentials")
        runs_as = await asyncio.to_thread(git_user, place, self._rules.isolation, credential)
        try:
            if runs_as.uid is not None:  # passable for git's user until the source is read
                source.parent.chmod(0o711)
            commit = await fetch_commit(url, wanted, source, self._rules.git, self._rules.limits, runs_as, credential)
        finally:
            source.parent.chmod(0o700)
        told.say(f"Fetched commit {commit}")
        return commit


def _make_folder(place: Place, folder: Path) -> None:
    place.make()
    folder.mkdir(mode=0o700)


def _give(place: Place, folder: Path) -> None:
    """Give the build to the deployment's user. Until now nobody else had access, so the checked files are unchanged."""
    if processes.is_root():
        processes.give_tree(folder, place.uid)


def _own_python() -> str:
    """Return the Python that the platform runs on, or its version if other users cannot reach it, as below /root."""
    found = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if found.exists() and (not processes.is_root() or processes.closed_directory(found.resolve().parent) is None):
        return str(found)
    return f"{sys.version_info.major}.{sys.version_info.minor}"


class _Told:
    """Output of a build: passes each line on, and keeps the last lines to explain a failure."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._last: deque[str] = deque(maxlen=_TOLD_LINES)

    def say(self, line: str) -> None:
        self._last.append(line)
        self._say(line)

    @property
    def last(self) -> list[str]:
        return list(self._last)


@dataclass(frozen=True)
class _Runs:
    """Runner of a build's commands, as the deployment's user."""

    rules: BuildRules
    order: Order
    place: Place
    folder: Path
    index: Mapping[str, str]
    told: _Told

    def _environment(self) -> dict[str, str]:
        network = {name: os.environ[name] for name in NETWORK_VARIABLES if name in os.environ}
        home = self.place.agent_home
        return network | {
            **self.index,
            "PATH": SEARCH_PATH,
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "UV_CACHE_DIR": str(home / "uv-cache"),
            "UV_PYTHON_INSTALL_DIR": str(home / "python"),
            "UV_NO_PROGRESS": "1",
            "UV_SYSTEM_CERTS": "1",
        }

    async def run(self, argv: Sequence[str]) -> None:
        """Run the command. Raises BuildError with the cause. Uses `subprocess`, since uvloop cannot start a process as
        another user.
        """
        process = self._start(argv)
        reading = asyncio.create_task(asyncio.to_thread(self._read, process, asyncio.get_running_loop()))
        try:
            await asyncio.shield(reading)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.wait([reading], timeout=_STOP_S)
            if process.poll() is None:
                processes.let_go(process)
        if process.returncode:
            raise BuildError(build_failure(self.order, self.told.last, f"uv ended with {process.returncode}"))

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        readable = [self.rules.program, self.rules.wheel, Path(sys.base_prefix)]
        owner = self.place.uid if processes.is_root() else None
        return subprocess.Popen(
            self.rules.isolation.wrapped(argv, [self.place.builds, self.place.agent_home], readable),
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
            user=owner,
            group=owner,
            extra_groups=None if owner is None else [],
        )

    def _read(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        """Read the output to its end, then wait for the process to end."""
        assert process.stdout, "it was asked for"
        with process.stdout as output:
            while line := output.readline(_LINE_BYTES):
                if text := line.decode(errors="replace").rstrip():
                    loop.call_soon_threadsafe(self.told.say, text)
        process.wait()


def find_uv() -> Path:
    """Return the program uv of the extra `platform`; as root, a copy of it if other users cannot reach the original.

    Raises InvalidRequestError when it is not installed.
    """
    try:
        from uv import find_uv_bin  # of the extra `platform` only
    except ModuleNotFoundError:
        raise InvalidRequestError("uv is not installed: pip install 'moorage[platform]'") from None
    found = Path(find_uv_bin()).resolve()
    if not processes.is_root() or processes.open_to_all([found]):
        return found
    copies = processes.open_copy([found.parent], Path("/var/lib/moorage/engines") / f"uv-{found.stat().st_mtime_ns}")
    return copies / found.parent.name / found.name


def find_wheel(given: Path | None, folder: Path) -> Path:
    """Return the agent server's wheel, readable for every deployment's user."""
    processes.make_directory(folder, 0o755)
    wheel = agent_wheel(given, folder)
    if wheel.parent == folder and wheel.stat().st_mode & 0o777 != 0o644:  # uv takes a touched file for a changed one
        wheel.chmod(0o644)
    return wheel
