"""Results of a fault run: figures to print, and faults that make it fail."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field


def progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)  # noqa: T201 - what a person who waits reads


@dataclass
class Report:
    name: str
    figures: dict[str, str] = field(default_factory=dict)
    wrongs: list[str] = field(default_factory=list)

    def tell(self, **figures: object) -> None:
        for name, value in figures.items():
            self.figures[name.replace("_", " ")] = f"{value:.2f}" if isinstance(value, float) else str(value)

    def check(self, right: object, wrong: str) -> None:
        if not right:
            self.wrongs.append(wrong)

    def add(self, wrongs: Iterable[str]) -> None:
        self.wrongs.extend(wrongs)

    def table(self) -> str:
        rows = [f"| {name} | {value} |" for name, value in self.figures.items()]
        wrongs = [f"WRONG: {wrong}" for wrong in self.wrongs[:20]]
        if len(self.wrongs) > 20:
            wrongs.append(f"WRONG: and {len(self.wrongs) - 20} more")
        verdict = f"{self.name}: {'FAILED' if self.wrongs else 'passed'}"
        return "\n".join([f"| {self.name} | |", "|---|---|", *rows, "", *wrongs, verdict])
