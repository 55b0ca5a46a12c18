"""Watching of engines while they are used."""

from threading import Event

import pytest
from structlog.testing import capture_logs

from moorage.embedded import watch
from moorage.kernel.errors import EngineError


class Restarting:
    """An engine that does not start at the first try, as after a crash on a busy machine."""

    def __init__(self) -> None:
        self.tries = 0
        self.runs = Event()

    def start(self) -> None:
        self.tries += 1
        if self.tries == 1:
            raise EngineError("it does not answer within 30 s")
        self.runs.set()


def test_an_engine_that_restarts_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_WATCH_S", 0.01)
    engine = Restarting()
    with capture_logs() as logs, watch.watched(engine):
        assert engine.runs.wait(10)
    [told] = logs
    assert told["log_level"] == "warning"
    assert "cannot" not in told["event"]
    assert told["reason"] == "it does not answer within 30 s"
