"""Many exports of many workspaces at once, by worker processes with more places than the limits leave: `scripts/soak
export-turns`. test_turns.py has its short form.

Triggers of the database write down who takes and who leaves a place, when that is committed. Replayed, that says how many
places each export and each workspace had at every moment, not only at those when somebody looked.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from moorage.kernel.crypto import MasterKeys
from moorage.kernel.postgres import Postgres
from tests.exports.platform import Client, Platform, make_platform
from tests.exports.soak import House
from tests.faults.reports import Report, progress
from tests.traces.trace_data import insert_runs, random_runs

RUNS_OF_EXPORT_MAX, EXPORTS_OF_WORKSPACE_MAX = 45, 15  # the defaults of the settings
WORKSPACES = 10
# More than a workspace may have begun, by one that orders half of everything.
GREEDY_SHARE = 0.55
SLOTS, PROCESSES = 50, 2
DAYS_OF_LONE, DAYS = 60, 12
_TIMEOUT_S = 1800

_LEDGER = """
CREATE TABLE turns (
    number bigserial PRIMARY KEY, kind text NOT NULL, workspace_id uuid NOT NULL, export_id uuid NOT NULL, step int NOT NULL
);
CREATE FUNCTION note_turn() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE changed jsonb := to_jsonb(NEW);
BEGIN
    INSERT INTO turns (kind, workspace_id, export_id, step)
    VALUES (TG_ARGV[0], NEW.workspace_id, coalesce(changed ->> 'export_id', changed ->> 'id')::uuid, TG_ARGV[1]::int);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER run_takes AFTER UPDATE ON export_runs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.worker IS NULL AND NEW.worker IS NOT NULL) EXECUTE FUNCTION note_turn('run', '1');
CREATE CONSTRAINT TRIGGER run_leaves AFTER UPDATE ON export_runs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.worker IS NOT NULL AND NEW.worker IS NULL) EXECUTE FUNCTION note_turn('run', '-1');
CREATE CONSTRAINT TRIGGER export_begins AFTER UPDATE ON exports DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.status <> 'Running' AND NEW.status = 'Running') EXECUTE FUNCTION note_turn('export', '1');
CREATE CONSTRAINT TRIGGER export_ends AFTER UPDATE ON exports DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.status = 'Running' AND NEW.status <> 'Running') EXECUTE FUNCTION note_turn('export', '-1');
"""
_TURNS = "SELECT kind, workspace_id, export_id, step FROM turns ORDER BY number"


@dataclass
class Turns:
    """What the ledger says: the most that ever was at once, and how places were shared while everybody waited for some."""

    runs_of_export: int = 0
    exports_of_workspace: int = 0
    places: int = 0
    contended: int = 0  # moments at which every workspace had work that waited
    shares: Counter[UUID] = field(default_factory=Counter)  # places that each had then, added up

    @property
    def unfairness(self) -> float:
        """The largest share by the smallest; 1 when all had the same."""
        return max(self.shares.values()) / max(1, min(self.shares.values())) if self.shares else 0.0


async def keep_ledger(postgres: Postgres) -> None:
    async with postgres.connection() as connection:
        await connection.execute(_LEDGER.encode())


async def read_turns(postgres: Postgres, ordered: Counter[UUID]) -> Turns:
    """`ordered`: the runs of each workspace, all of which were taken once."""
    turns, waiting = Turns(), Counter(ordered)
    of_export, of_workspace, begun = Counter[UUID](), Counter[UUID](), Counter[UUID]()
    for row in await postgres.fetch(_TURNS):
        workspace_id, export_id, step = row["workspace_id"], row["export_id"], row["step"]
        if row["kind"] == "export":
            begun[workspace_id] += step
            turns.exports_of_workspace = max(turns.exports_of_workspace, begun[workspace_id])
            continue
        of_export[export_id] += step
        of_workspace[workspace_id] += step
        waiting[workspace_id] -= max(0, step)
        turns.runs_of_export = max(turns.runs_of_export, of_export[export_id])
        turns.places = max(turns.places, of_workspace.total())
        if all(of_workspace[each] and waiting[each] for each in ordered):
            turns.contended += 1
            turns.shares.update({each: of_workspace[each] for each in ordered})
    return turns


async def order_all(clients: Sequence[tuple[UUID, Client]], sessions: dict[UUID, UUID], exports: int, days: int) -> Any:
    """So many exports at the same time, most of them of the first workspace: (client, export), and runs by workspace."""
    folders = {id_: await client.make_destination({"prefix": "", "bucket_name": "turns"}, destination_type="local")
               for id_, client in clients}  # fmt: skip
    greedy = int(exports * GREEDY_SHARE)
    owners = [clients[0]] * greedy + [clients[1 + n % (len(clients) - 1)] for n in range(exports - greedy)]
    end = f"2026-01-{days + 1:02}"

    async def one(id_: UUID, client: Client) -> tuple[Client, Any]:
        made = await client.make_export(folders[id_], sessions[id_], "2026-01-01", end, format_version="v2_beta")
        return client, made

    made = await asyncio.gather(*(one(*owner) for owner in owners))
    return made, Counter(id_ for id_, _ in owners for _ in range(days))
