"""Links by which the front door connects to deployments: see `embedded/front_door.py`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from moorage.control.places import Place
from moorage.control.records.host_names import ServedName

_MARK, _LINK, _HTTPS_MARK = "h-", "l-", "s-"


class FrontLink:
    """The link for one of a deployment's names, in the folder of the front door."""

    def __init__(self, home: Path, name: str) -> None:
        self._front_door = home / "front-door"
        self._link = self._front_door / "front" / f"d-{name}.sock"

    def point_to(self, socket: Path) -> None:
        """Point the link to the socket. It is replaced by a rename, so every request finds a link."""
        target = f"../{socket.relative_to(self._front_door)}"  # the link's folder is beside it
        if self._link.is_symlink() and str(self._link.readlink()) == target:
            return
        _replace_link(self._link, target)

    def leads_to(self, place: Place) -> bool:
        """Return True if the link leads to that deployment."""
        return self._link.is_symlink() and self._link.readlink().parent.name == place.sockets.name

    def remove(self) -> None:
        self._link.unlink(missing_ok=True)


class HostLinks:
    """The deployments' own host names at the front door. Each name's link leads to the link of its deployment, so a
    switch of revisions stays one rename.
    """

    def __init__(self, home: Path) -> None:
        self._front = home / "front-door" / "front"

    def serve(self, wanted: Collection[ServedName]) -> None:
        """Serve the deployments `wanted` at their host names, and no others. Idempotent.

        A removed name first loses its mark, and its link at the next call: requests that passed the mark still use the
        link.
        """
        names = {each.host_name for each in wanted}
        for old in self._found(_LINK) - names - self._found(_MARK):
            (self._front / f"{_LINK}{old}").unlink(missing_ok=True)
        for each in wanted:
            link, target = self._front / f"{_LINK}{each.host_name}", f"d-{each.deployment_name}.sock"
            if not link.is_symlink() or str(link.readlink()) != target:
                _replace_link(link, target)
        self._set_marks(_MARK, names)
        self._set_marks(_HTTPS_MARK, {each.host_name for each in wanted if each.has_https})

    def _found(self, kind: str) -> set[str]:
        return {file.name.removeprefix(kind) for file in self._front.glob(f"{kind}*")}

    def _set_marks(self, kind: str, names: set[str]) -> None:
        """Write the marks, which the front door's own user must be able to read."""
        found = self._found(kind)
        for name in found - names:
            (self._front / f"{kind}{name}").unlink(missing_ok=True)
        for name in names - found:
            mark = self._front / f"{kind}{name}"
            mark.touch()
            mark.chmod(0o644)


def _replace_link(link: Path, target: str) -> None:
    new = link.with_name(f".{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(link)
