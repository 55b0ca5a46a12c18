"""Services of the exports' room that its routes need; `wiring` assembles them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # routes import this file for its names only
    from moorage.exports.destinations import Destinations
    from moorage.exports.exports import Exports
    from moorage.exports.runs import ExportRuns
    from moorage.exports.verify import Verifier


@dataclass(frozen=True)
class ExportRoom:
    destinations: Destinations
    exports: Exports
    runs: ExportRuns
    verifier: Verifier
