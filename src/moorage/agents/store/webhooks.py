"""SQL of webhook deliveries: rows with leases, written by the statement that ends a run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from moorage.agents.records.webhooks import DeliveryStatus
from moorage.agents.records.words import JsonObject
from moorage.kernel.postgres import Postgres
from moorage.worker.leases import Lease, arrays_of, proof_of

_LEFT_ON_THREAD = '(SELECT t."values" FROM threads t WHERE t.thread_id = {ended}.thread_id)'


def insert_deliveries(ended: str, columns: str, *, status: str, error: str, values: str = "NULL::jsonb") -> str:
    """Return the CTE that inserts deliveries for the runs in the CTE `ended`, which has `columns`, `webhook`,
    `started_at`.

    It is part of the statement that ends the runs, so both are committed together. `status` and `error` are
    expressions; `values` is the expression that the same statement writes to the thread. By default the thread's values
    are read.
    """
    fields = ", ".join(f"'{name}', {status if name == 'status' else name}" for name in columns.split(", "))
    return f"""
    INSERT INTO webhook_deliveries (run_id, url, run, "values", error, run_started_at)
    SELECT run_id, webhook, json_build_object({fields}),
        coalesce({values}, {_LEFT_ON_THREAD.format(ended=ended)}), {error}, started_at
    FROM {ended} WHERE webhook IS NOT NULL
    """


_CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT delivery_id FROM webhook_deliveries WHERE status = 'pending' AND not_before <= now()
    ORDER BY not_before FOR UPDATE SKIP LOCKED LIMIT %(slots)s
)
UPDATE webhook_deliveries d SET status = 'sending', attempt = attempt + 1, worker = %(worker)s,
    lease_until = now() + %(lease_s)s * interval '1 second'
FROM picked WHERE d.delivery_id = picked.delivery_id AND d.status = 'pending'
RETURNING d.*
"""
_HELD = """
FROM unnest(%(keys)s::uuid[], %(attempts)s::int[]) AS held (key, held_attempt)
WHERE delivery_id = key AND attempt = held_attempt AND worker = %(worker)s AND status = 'sending'
"""
_BEAT = f"""
UPDATE webhook_deliveries SET lease_until = now() + %(lease_s)s * interval '1 second'
{_HELD} RETURNING delivery_id
"""
_HAND_BACK = f"""
UPDATE webhook_deliveries SET status = 'pending', attempt = attempt - 1, worker = NULL, lease_until = NULL {_HELD}
"""
# A lost sender may have sent already: twice is better than never.
_REAP = """
UPDATE webhook_deliveries SET
    status = CASE WHEN attempt >= %(attempts_max)s THEN 'failed' ELSE 'pending' END,
    ended_at = CASE WHEN attempt >= %(attempts_max)s THEN now() END,
    worker = NULL, lease_until = NULL
WHERE status = 'sending' AND lease_until < now()
"""
_MOVE = """
UPDATE webhook_deliveries SET
    status = %(status)s, worker = NULL, lease_until = NULL,
    not_before = now() + %(delay_s)s * interval '1 second',
    ended_at = CASE WHEN %(status)s <> 'pending' THEN now() END
WHERE delivery_id = %(id)s AND attempt = %(attempt)s AND worker = %(worker)s AND status = 'sending'
"""
_SWEEP = "DELETE FROM webhook_deliveries WHERE ended_at < now() - %s * interval '1 second'"


@dataclass(frozen=True)
class LeasedDelivery:
    """A delivery leased to this process, with its content except the time of sending."""

    lease: Lease
    run_id: UUID
    url: str
    told: JsonObject


class WebhookStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def claim(self, worker: str, slots: int, lease_s: float) -> list[LeasedDelivery]:
        values = {"worker": worker, "slots": slots, "lease_s": lease_s}
        return [_leased(row) for row in await self._postgres.fetch(_CLAIM, values)]

    async def beat(self, leases: Collection[Lease], lease_s: float) -> list[UUID]:
        rows = await self._postgres.fetch(_BEAT, {**arrays_of(leases), "lease_s": lease_s})
        return [row["delivery_id"] for row in rows]

    def beat_from_thread(self, leases: Collection[Lease], lease_s: float) -> None:
        self._postgres.fetch_from_thread(_BEAT, {**arrays_of(leases), "lease_s": lease_s})

    async def hand_back(self, leases: Collection[Lease]) -> None:
        await self._postgres.execute(_HAND_BACK, arrays_of(leases))

    async def reap(self, attempts_max: int) -> int:
        return await self._postgres.execute(_REAP, {"attempts_max": attempts_max})

    async def move(self, lease: Lease, status: DeliveryStatus, delay_s: float = 0) -> None:
        """Record the result of an attempt: a final status, or pending until the next attempt."""
        await self._postgres.execute(_MOVE, {**proof_of(lease), "status": status.value, "delay_s": delay_s})

    async def sweep(self, keep_s: float) -> int:
        return await self._postgres.execute(_SWEEP, (keep_s,))


def _leased(row: dict[str, Any]) -> LeasedDelivery:
    times = {name: row[name] for name in ("run_started_at", "run_ended_at")}
    told = {**row["run"], **times, "values": row["values"]}
    if row["error"] is not None:
        told["error"] = row["error"]
    return LeasedDelivery(Lease(row["delivery_id"], row["worker"], row["attempt"]), row["run_id"], row["url"], told)
