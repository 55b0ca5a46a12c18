"""A real S3 server for the session, beside the databases of accounts and traces.

A test module uses it with `pytest_plugins = "tests.exports.fixtures"`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exports.seaweed import Seaweed

pytest_plugins = ["tests.accounts.fixtures", "tests.traces.fixtures"]


@pytest.fixture(scope="session")
def s3() -> Iterator[Seaweed]:
    with Seaweed() as running:
        yield running
