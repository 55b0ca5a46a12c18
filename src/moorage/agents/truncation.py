"""Emptying an agent server between tests of its clients. Only servers in development offer it."""

from __future__ import annotations

from moorage.agents.assistants import Assistants
from moorage.agents.records.system import Truncation
from moorage.agents.runs import Runs
from moorage.agents.store.truncation import truncate_tables
from moorage.kernel.postgres import Postgres


async def truncate(postgres: Postgres, assistants: Assistants, runs: Runs, what: Truncation) -> None:
    """Delete all objects of the named kinds, of every user. Stops runs under way and recreates system assistants."""
    names = [name for name, wanted in what if wanted]
    if what.runs or what.threads:
        await runs.stop_all()
    await truncate_tables(postgres, names)
    await assistants.ensure_system()
