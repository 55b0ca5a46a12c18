"""Descriptions of operations in both OpenAPI documents."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fastapi import FastAPI

from moorage.wiring import agent_application, platform


@pytest.mark.parametrize("mount_all", [agent_application.mount_all, platform.mount_all], ids=["agents", "platform"])
def test_each_operation_is_told_in_a_sentence(mount_all: Callable[[FastAPI], object]) -> None:
    app = FastAPI()
    mount_all(app)
    operations = {
        f"{method} {path}": operation.get("description", "")
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
    }
    assert len(operations) > 40
    untold = {name for name, text in operations.items() if not text.partition("\n\n")[0].rstrip().endswith((".", ":"))}
    assert not untold, "write the docstring of its route"
