"""The link by which the front door dials a deployment: see `embedded/front_door.py`."""

from __future__ import annotations

from pathlib import Path

from moorage.control.places import Place


class FrontLink:
    """Of one name of a deployment, in the folder of the front door."""

    def __init__(self, home: Path, name: str) -> None:
        self._front_door = home / "front-door"
        self._link = self._front_door / "front" / f"d-{name}.sock"

    def point_to(self, socket: Path) -> None:
        """Rename the link: no request meets a moment in between."""
        target = f"../{socket.relative_to(self._front_door)}"  # front/ lies beside it
        if self._link.is_symlink() and str(self._link.readlink()) == target:
            return
        new = self._link.with_name(f".{self._link.name}.new")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.replace(self._link)

    def leads_to(self, place: Place) -> bool:
        """Whether the deployment of that place is the one that is dialled."""
        return self._link.is_symlink() and self._link.readlink().parent.name == place.sockets.name

    def remove(self) -> None:
        self._link.unlink(missing_ok=True)
