"""The links by which the front door dials deployments: see `embedded/front_door.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moorage.control.places import Place

_MARK, _LINK = "h-", "l-"


class FrontLink:
    """The link of one of a deployment's names, in the folder of the front door."""

    def __init__(self, home: Path, name: str) -> None:
        self._front_door = home / "front-door"
        self._link = self._front_door / "front" / f"d-{name}.sock"

    def point_to(self, socket: Path) -> None:
        """Rename the link: no request meets a moment in between."""
        target = f"../{socket.relative_to(self._front_door)}"  # front/ lies beside it
        if self._link.is_symlink() and str(self._link.readlink()) == target:
            return
        _replace_link(self._link, target)

    def leads_to(self, place: Place) -> bool:
        """Return True if the link leads to the deployment of that place."""
        return self._link.is_symlink() and self._link.readlink().parent.name == place.sockets.name

    def remove(self) -> None:
        self._link.unlink(missing_ok=True)


class HostLinks:
    """The host names that the front door serves deployments at. Each leads to the link of its deployment, so that a switch
    of revisions stays one rename.
    """

    def __init__(self, home: Path) -> None:
        self._front = home / "front-door" / "front"

    def set(self, wanted: Mapping[str, str]) -> None:
        """Serve the deployments `wanted`, by host name, and no others. Idempotent.

        A name that goes loses its mark, and at the next call its link: requests that were let in by the mark still dial it.
        """
        marked = {file.name.removeprefix(_MARK) for file in self._front.glob(f"{_MARK}*")}
        for link in self._front.glob(f"{_LINK}*"):
            name = link.name.removeprefix(_LINK)
            if name not in marked and name not in wanted:
                link.unlink(missing_ok=True)
        for name in marked - wanted.keys():
            (self._front / f"{_MARK}{name}").unlink(missing_ok=True)
        for name, deployment in wanted.items():
            link, target = self._front / f"{_LINK}{name}", f"d-{deployment}.sock"
            if not link.is_symlink() or str(link.readlink()) != target:
                _replace_link(link, target)
            if name not in marked:
                self._mark(name)

    def _mark(self, name: str) -> None:
        """The front door has a user of its own, who must be able to read the mark."""
        mark = self._front / f"{_MARK}{name}"
        mark.touch()
        mark.chmod(0o644)


def _replace_link(link: Path, target: str) -> None:
    new = link.with_name(f".{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(link)
