"""Progress of a revision, as a terminal and as a log of CI show it."""

from __future__ import annotations

import re

import pytest

from moorage.cli.phases import Phases
from tests.cli.terminals import without_colours


def shown(lines_of_build: list[str]) -> None:
    with Phases() as phases:
        phases.show(7, "BUILDING", lines_of_build)
        phases.show(7, "BUILDING", ["the last one"])
        phases.show(7, "DEPLOYED", [])


def test_a_terminal_shows_seconds_and_the_last_lines_while_they_come(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    shown([f"line {number}" for number in range(20)])
    pictures = without_colours(capsys.readouterr().err.replace("\r", "\n"))
    assert re.search(r"^  BUILDING +0\.\d s *$", pictures, re.MULTILINE)
    assert "line 19" in pictures
    assert "the last one" in pictures
    assert "line 13" not in pictures, "only the last ones have room"
    assert pictures.rstrip().splitlines()[-1].strip() == "DEPLOYED", "what was printed makes room for the outcome"


def test_a_log_gets_one_line_a_state(monkeypatch, capsys):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    shown(["line 0"])
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["revision 7: BUILDING", "  | line 0", "  | the last one"]
    assert re.fullmatch(r"revision 7: DEPLOYED \(BUILDING took 0\.\d s\)", lines[3])


@pytest.mark.parametrize("terminal", ["1", ""])
def test_what_a_build_prints_steers_no_terminal(monkeypatch, capsys, terminal):
    monkeypatch.setenv("FORCE_COLOR", terminal)
    shown(["\x1b[2Jgone"])
    assert "\x1b[2J" not in capsys.readouterr().err
