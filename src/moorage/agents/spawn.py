"""The job that fires crons: one run for each time that has come.

Any number of processes may do this concurrently. If times passed while no process was running, the cron fires once,
and its schedule continues from now.
"""

from __future__ import annotations

import asyncio
import time
from itertools import cycle

import structlog
from pydantic import ValidationError

from moorage.agents.crons import sent_by
from moorage.agents.records.crons import next_run_date, run_request
from moorage.agents.records.users import User
from moorage.agents.runs import Runs
from moorage.agents.store.crons import CronStore, DueCron, Fired, Firing, Pick
from moorage.agents.store.new_runs import NewRun
from moorage.kernel.errors import MoorageError

log = structlog.get_logger(__name__)

# Crons that are due at the same moment fire in groups, one group each fifth of a second. That is 10,000 within a
# minute, and leaves room for other runs.
_GROUP = 50
_GROUP_S = 0.2
_PAUSE_MIN_S = 0.05


class CronSpawner:
    def __init__(self, crons: CronStore, runs: Runs) -> None:
        self._crons = crons
        self._runs = runs

    async def fire_due(self) -> None:
        """Fire all crons that are due. Groups alternate between the longest overdue crons and the most recent ones, so
        that a new time does not wait behind a large backlog.
        """
        picks = cycle((Pick.OLDEST, Pick.NEWEST))
        while await self._fire_group(next(picks)):
            pass
        while await self._fire_group(Pick.SET_BACK):
            pass

    async def _fire_group(self, pick: Pick) -> bool:
        began_at = time.monotonic()
        group = await self._crons.fire(pick, self._plan, _GROUP)
        for fired in group:
            await self._follow_up(fired)
        if len(group) == _GROUP:
            await asyncio.sleep(max(_PAUSE_MIN_S, began_at + _GROUP_S - time.monotonic()))
        return bool(group)

    def _plan(self, due: DueCron) -> Firing:
        cron = due.cron
        try:
            next_at = next_run_date(
                cron["schedule"], cron["timezone"], cron["end_time"], enabled=cron["enabled"], after=due.now
            )
        except ValueError as error:  # this machine does not know the time zone
            log.error("a cron cannot go on", cron_id=str(cron["cron_id"]), error=str(error))
            return Firing(None, None)
        return Firing(None if due.was_set_back else self._run_of(due), next_at)

    def _run_of(self, due: DueCron) -> NewRun | None:
        cron, user = due.cron, None if due.auth_user is None else User(due.auth_user)
        try:
            return self._runs.prepare(user, cron["thread_id"], run_request(cron), sent_by(cron))
        except (MoorageError, ValidationError) as error:
            log.error("the run of a cron cannot be made", cron_id=str(cron["cron_id"]), error=str(error))
            return None

    async def _follow_up(self, fired: Fired) -> None:
        told = log.bind(cron_id=str(fired.due.cron["cron_id"]))
        created, new = fired.created, fired.firing.run
        if created is None or new is None:
            return
        if created.missing:
            told.warning("a cron is switched off: its assistant has gone")
        elif created.refused:
            told.info("a cron left out one time: its thread is busy")
        else:
            await self._runs.begin(created, new.strategy)
