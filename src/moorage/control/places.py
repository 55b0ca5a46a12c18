"""Folders of one deployment on this machine.

agents/<number>/builds/<build>/    source and environment of a revision, of the deployment's own user
agents/<number>/home/              home of its processes, with the caches of its builds
agents/<number>/run/               ours: which builds are complete, what runs, what it prints, its credentials
front-door/rev/<number>/           ours: the sockets of its revisions
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from moorage.control.records.states import Authentication
from moorage.embedded import processes, users
from moorage.embedded.agents import make_socket_directory
from moorage.kernel.encoding import decode, encode


@dataclass(frozen=True)
class Build:
    """A complete build: its folder holds `source` and `environment`."""

    folder: Path
    config: str  # the path of langgraph.json below `source`
    commit: str | None
    interpreter: str | None = None  # the interpreter that was asked for
    authentication: Authentication = "platform_keys"

    @property
    def python(self) -> Path:
        return self.folder / "environment" / "bin" / "python"

    @property
    def config_file(self) -> Path:
        return self.folder / "source" / self.config


@dataclass(frozen=True)
class Place:
    """The folders and files of one deployment on this machine."""

    home: Path
    number: int

    @property
    def uid(self) -> int:
        """Return the user of the deployment's processes. As root, `make` must have claimed it before."""
        return users.user_of(self.root)

    @property
    def root(self) -> Path:
        return self.home / "agents" / str(self.number)

    @property
    def builds(self) -> Path:
        return self.root / "builds"

    @property
    def agent_home(self) -> Path:
        return self.root / "home"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def front_door(self) -> Path:
        return self.home / "front-door"

    @property
    def sockets(self) -> Path:
        return self.front_door / "rev" / str(self.number)

    def socket(self, revision_id: UUID) -> Path:
        """Return the path of a revision's socket. Each revision has its own, so that none replaces another's."""
        return self.sockets / f"{revision_id}.sock"

    def pid_file(self, revision_id: UUID) -> Path:
        return self.run / f"{revision_id}.pid"

    def log_file(self, revision_id: UUID) -> Path:
        return self.run / f"{revision_id}.log"

    def make(self) -> None:
        """Make the folders that are missing."""
        passable = 0o711 if processes.is_root() else 0o700
        for folder in (self.root, self.builds):
            processes.make_directory(folder, passable)
        processes.make_directory(self.run, 0o700)
        if processes.is_root():
            users.Users().claim(self.root)
        make_socket_directory(self.front_door, self.number)
        self.make_own(self.agent_home)

    def make_own(self, folder: Path) -> None:
        """Make a folder that belongs to the deployment's user."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if processes.is_root():
            os.chown(folder, self.uid, self.uid, follow_symlinks=False)

    def claim_git_user(self) -> int:
        """Claim a user for a git that holds a credential: the agent's own user could read the credential from git's
        process. Idempotent; only as root.
        """
        processes.make_directory(self._git_user / "run", 0o700)
        return users.Users().claim(self._git_user)

    @property
    def _git_user(self) -> Path:
        return self.run / "git"

    # --- builds ---

    def read_build(self, build_id: UUID) -> Build | None:
        try:
            found = decode((self.run / f"{build_id}.build").read_bytes())
        except FileNotFoundError:
            return None
        build = Build(
            self.builds / found["folder"],
            found["config"],
            found["commit"],
            found.get("interpreter"),
            found.get("authentication", "platform_keys"),
        )
        return build if build.python.exists() else None

    def newest_build(self, interpreter: str) -> Build | None:
        """Return the newest complete build that runs on this interpreter."""
        marks = sorted(self.run.glob("*.build"), key=lambda mark: mark.stat().st_mtime_ns, reverse=True)
        builds = (self.read_build(UUID(mark.stem)) for mark in marks)
        return next((build for build in builds if build and build.interpreter == interpreter), None)

    def write_build(self, build_id: UUID, build: Build) -> None:
        """Write the mark that makes the build complete."""
        new = self.run / f"{build_id}.build.new"
        found = {"config": build.config, "commit": build.commit, "interpreter": build.interpreter}
        found |= {"folder": build.folder.name, "authentication": build.authentication}
        new.write_bytes(encode(found))
        new.rename(self.run / f"{build_id}.build")

    def remove_unfinished(self) -> None:
        """Remove builds that a killed platform left unfinished, and end processes that still run in them. Call it
        before any build begins.
        """
        finished = {decode(mark.read_bytes())["folder"] for mark in self.run.glob("*.build")}
        for folder in self.builds.iterdir() if self.builds.exists() else ():
            if folder.name not in finished:
                processes.kill_mentioning(folder)
                shutil.rmtree(folder, ignore_errors=True)
        for archive in self.run.glob("*.tar.gz"):
            archive.unlink(missing_ok=True)

    def remove_builds(self, keep: Iterable[UUID], older_than_s: float = 3600) -> None:
        """Remove all other builds. An unfinished build is removed only when it is too old for a process to be still
        writing to it.
        """
        kept = {str(build_id) for build_id in keep}
        for mark in self.run.glob("*.build"):
            if mark.stem not in kept:
                mark.unlink()
        for folder in self.builds.iterdir() if self.builds.exists() else ():
            is_old = time.time() - folder.lstat().st_mtime >= older_than_s
            if folder.name.rpartition(".")[0] not in kept and is_old:
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self) -> None:
        """Remove the place except the links of the front door: first all processes of its user, then its files, then
        the user.

        Raises OSError when a file is left, EngineError when a process is.
        """
        self._free_git_user()
        uid = self.uid if processes.is_root() and (self.run / "user").exists() else None
        if uid is not None:
            users.end_all(uid)
        for folder in (self.sockets, self.builds, self.agent_home, self.root):  # the note of the user is removed last
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        if uid is not None:
            users.Users().free(uid, self.root)

    def _free_git_user(self) -> None:
        if processes.is_root() and (self._git_user / "run" / "user").exists():
            uid = users.user_of(self._git_user)
            users.end_all(uid)
            shutil.rmtree(self._git_user)
            users.Users().free(uid, self._git_user)


def places_in(home: Path) -> list[Place]:
    """List the places of the deployments that have one."""
    folder = home / "agents"
    return (
        [Place(home, int(entry.name)) for entry in folder.iterdir() if entry.name.isdigit()] if folder.exists() else []
    )
