"""Causes of failed builds and starts, from the printed lines."""

from __future__ import annotations

import pytest

from moorage.control.causes import build_failure, start_failure
from moorage.control.records.orders import Order
from moorage.control.records.states import RevisionStatus, Source
from moorage.kernel.ids import uuid7

ORDER = Order(
    uuid7(), uuid7(), uuid7(), "tides", 7, 3, RevisionStatus.BUILDING, Source.GITHUB, {}, {}, None, None, False, None
)
UV = """Using CPython 3.11
  \u00d7 No solution found when resolving dependencies:
  \u2570\u2500\u25b6 Because nowhere was not found in the package registry
      and you require nowhere, we can conclude that your requirements
      are unsatisfiable.
      hint: look elsewhere"""
TRACE = """revision 3 starts
Traceback (most recent call last):
  File "/srv/agent.py", line 3, in <module>
    import nowhere
ModuleNotFoundError: No module named 'nowhere'"""


def test_the_installers_complaint_comes_first_with_three_lines_of_its_reason():
    cause, *near, log = build_failure(ORDER, UV.splitlines(), "uv ended with 1").splitlines()
    assert cause == "\u00d7 No solution found when resolving dependencies:"
    assert len(near) == 3
    assert "nowhere was not found" in near[0]
    assert log == "The whole log: moorage logs tides --type build --revision 3"


def test_an_exception_comes_first_with_the_lines_that_led_to_it():
    cause, *near, log = start_failure(ORDER, "The agent ended at its start", TRACE.splitlines()).splitlines()
    assert cause == "The agent ended at its start: ModuleNotFoundError: No module named 'nowhere'"
    assert near[-1].strip() == "import nowhere"
    assert len(near) == 3
    assert log == "The whole log: moorage logs tides --revision 3"


def test_the_word_error_is_not_said_twice():
    printed = ["starts", "error: Graph 'agent' cannot be loaded", "  agent.py, line 1: import nowhere"]
    cause, line, _ = start_failure(ORDER, "It ended", printed).splitlines()
    assert (cause, line.strip()) == ("It ended: Graph 'agent' cannot be loaded", "agent.py, line 1: import nowhere")


@pytest.mark.parametrize(("printed", "cause"), [([], "uv ended with 2"), (["a", "killed"], "killed")])
def test_what_complains_in_no_known_way_still_says_its_last_words(printed, cause):
    assert build_failure(ORDER, printed, "uv ended with 2").splitlines()[0] == cause
