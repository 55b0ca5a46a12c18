"""A ledger of places: which export had which place, while many exports of many workspaces ran at once.

Triggers of the database record every change of a place when it is committed. Replayed, the ledger tells how many places
each export and each workspace had at every moment, not only at sampled ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from moorage.kernel.postgres import Postgres
from tests.exports.platform import Client, Platform

WORKSPACES = 10
# Of all exports; more than a workspace may have begun at once.
GREEDY_PCT = 55

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
    """Results of the ledger: the most places that were ever taken at once, and how places were shared while everybody
    waited for some.
    """

    runs_of_export: int = 0
    exports_of_workspace: int = 0
    places: int = 0
    contended: int = 0  # moments at which every workspace had work that waited
    shares: Counter[UUID] = field(default_factory=Counter)  # places that each workspace had then, added up

    @property
    def unfairness(self) -> float:
        """Return the largest share divided by the smallest; 1 when all had the same."""
        return max(self.shares.values()) / max(1, min(self.shares.values())) if self.shares else 0.0


async def keep_ledger(postgres: Postgres) -> None:
    async with postgres.connection() as connection:
        await connection.execute(_LEDGER.encode())


async def read_turns(postgres: Postgres, ordered: Counter[UUID]) -> Turns:
    """Read the ledger. `ordered` are the runs of each workspace, each of which was taken once."""
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
        if all(waiting[each] for each in ordered):
            turns.contended += 1
            turns.shares.update({each: of_workspace[each] for each in ordered})
    return turns


async def order_all(platform: Platform, exports: int, days: int) -> tuple[list[tuple[Client, str]], Counter[UUID]]:
    """Order this many exports at the same time, the greater half of them for the first workspace.

    Returns the exports, and how many runs each workspace has.
    """
    callers = [platform.keys.add() for _ in range(WORKSPACES)]
    greedy = exports * GREEDY_PCT // 100
    owners = [callers[0]] * greedy + [callers[1 + n % (WORKSPACES - 1)] for n in range(exports - greedy)]
    made = await asyncio.gather(*(order_one(platform.client(key), days) for key, _ in owners))
    return list(made), Counter(
        {workspace_id: days * owners.count((key, workspace_id)) for key, workspace_id in callers}
    )


async def order_one(client: Client, days: int) -> tuple[Client, str]:
    destination_id = await client.make_destination({"bucket_name": "turns"}, destination_type="local")
    made = await client.make_export(destination_id, uuid4(), "2026-01-01", _day(days), format_version="v2_beta")
    return client, str(made["id"])


def _day(number: int) -> str:
    return f"2026-{1 + number // 28:02}-{1 + number % 28:02}"


async def ended(exports: list[tuple[Client, str]], timeout_s: float) -> Counter[str]:
    """Return how many ended in each state."""
    found: list[Any] = [await client.ended(export_id, timeout_s) for client, export_id in exports]
    return Counter(export["status"] for export in found)
