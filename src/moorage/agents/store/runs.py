"""SQL of runs: rows with leases. Each statement that moves a status is a compare-and-set."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from moorage.agents.records.filters import EVERYTHING, Filter
from moorage.agents.records.protocol import PROTOCOL
from moorage.agents.records.runs import CANCELLED, CancelAction, MultitaskStrategy, Run, RunFailure, RunStatus
from moorage.agents.records.threads import ThreadStatus
from moorage.agents.records.words import JsonObject
from moorage.agents.store.new_runs import NewRun, creation
from moorage.agents.store.threads import metadata_without
from moorage.agents.store.visible import visible_run
from moorage.agents.store.webhooks import insert_deliveries
from moorage.kernel.encoding import without_nul
from moorage.kernel.postgres import Postgres
from moorage.worker.leases import Lease, arrays_of, proof_of

COLUMNS = """run_id, thread_id, assistant_id, created_at, updated_at, status, metadata, kwargs, multitask_strategy"""
# The index that allows one running run per thread.
_ONE_RUNNING = "runs_one_running"
_SELECTABLE = frozenset(COLUMNS.split(", "))

# A run that was lost before and has one attempt left. It executes in a process of its own.
_IS_APART = "r.attempt > 0 AND r.attempt >= %(attempts_max)s - 1"


def _claim(condition: str) -> str:
    """Return the statement that claims runs. Runs of a thread start in order, one at a time. SKIP LOCKED lets processes
    claim concurrently; the unique index fails a claim of two runs of one thread.
    """
    return f"""
WITH picked AS MATERIALIZED (
    SELECT r.run_id FROM runs r
    WHERE r.status = 'pending' AND r.not_before <= now() AND r.graph_id = ANY(%(graph_ids)s) AND {condition}
        AND NOT EXISTS (SELECT FROM runs o WHERE o.thread_id = r.thread_id AND o.status = 'running')
        AND NOT EXISTS (
            SELECT FROM runs o WHERE o.thread_id = r.thread_id AND o.status = 'pending' AND o.run_id < r.run_id
                AND o.not_before <= now()
        )
    ORDER BY r.run_id
    FOR UPDATE SKIP LOCKED
    LIMIT %(slots)s
), claimed AS (
    UPDATE runs r SET status = 'running', attempt = attempt + 1, worker = %(worker)s, updated_at = now(),
        lease_until = now() + %(lease_s)s * interval '1 second', started_at = coalesce(r.started_at, now())
    FROM picked WHERE r.run_id = picked.run_id AND r.status = 'pending'
    RETURNING r.*
)
SELECT {", ".join(f"c.{column}" for column in COLUMNS.split(", "))}, c.graph_id, c.temporary, c.attempt, c.worker, c.cancel_action,
    c.accepted_by, c.auth_user,
    coalesce(t.metadata, '{{}}') AS thread_metadata, coalesce(a.config, '{{}}') AS assistant_config,
    coalesce(a.context, '{{}}') AS assistant_context, coalesce(a.metadata, '{{}}') AS assistant_metadata
FROM claimed c
LEFT JOIN threads t ON t.thread_id = c.thread_id
LEFT JOIN assistants a ON a.assistant_id = c.assistant_id
"""


_CLAIM = _claim(f"NOT ({_IS_APART})")
_CLAIM_APART = _claim(f"({_IS_APART})")
_WAITS_APART = f"""
SELECT FROM runs r WHERE r.status = 'pending' AND r.not_before <= now() AND r.graph_id = ANY(%(graph_ids)s)
    AND {_IS_APART} LIMIT 1
"""
_BEAT = """
UPDATE runs SET lease_until = now() + %(lease_s)s * interval '1 second'
FROM unnest(%(keys)s::uuid[], %(attempts)s::int[]) AS held (key, held_attempt)
WHERE run_id = key AND attempt = held_attempt AND worker = %(worker)s AND status = 'running'
RETURNING run_id, cancel_action
"""
# Expired leases: back into the queue, to continue from the last checkpoint, or to an error when no attempt is left.
_REAP = f"""
WITH reaped AS (
UPDATE runs SET
    status = CASE WHEN attempt >= %(attempts_max)s THEN 'error' ELSE 'pending' END,
    error = CASE WHEN attempt >= %(attempts_max)s
        THEN jsonb_build_object('error', 'WorkerLost', 'message', format('The run was lost %%s times.', attempt)) END,
    auth_user = CASE WHEN attempt < %(attempts_max)s THEN auth_user END,
    worker = NULL, lease_until = NULL, updated_at = now()
WHERE status = 'running' AND lease_until < now()
RETURNING {COLUMNS}, error, webhook, started_at
), left_behind AS (
    UPDATE threads t SET status = 'error', error = reaped.error, updated_at = now()
    FROM reaped WHERE t.thread_id = reaped.thread_id AND reaped.status = 'error'
), lost AS (
    SELECT * FROM reaped WHERE status = 'error'
), told AS ({insert_deliveries("lost", COLUMNS, status="status", error="error")})
SELECT count(*) AS n FROM reaped
"""
_HAND_BACK = """
UPDATE runs SET status = 'pending', attempt = attempt - 1, worker = NULL, lease_until = NULL, updated_at = now()
FROM unnest(%(keys)s::uuid[], %(attempts)s::int[]) AS held (key, held_attempt)
WHERE run_id = key AND attempt = held_attempt AND worker = %(worker)s AND status = 'running'
"""
# Ends a run and writes the state that it left on its thread, in one statement; fenced by attempt.
_END = f"""
WITH ended AS (
    UPDATE runs SET status = %(status)s, error = %(error)s, worker = NULL, lease_until = NULL, auth_user = NULL,
        updated_at = now()
    WHERE run_id = %(id)s AND status = 'running' AND worker = %(worker)s AND attempt = %(attempt)s
    RETURNING {COLUMNS}, webhook, started_at
), left_behind AS (
    UPDATE threads t SET
        "values" = coalesce(%(values)s, t."values"), interrupts = coalesce(%(interrupts)s, t.interrupts),
        status = %(thread_status)s, error = %(thread_error)s, updated_at = now(), state_updated_at = now()
    FROM ended WHERE t.thread_id = ended.thread_id
), told AS ({
    insert_deliveries("ended", COLUMNS, status="status", error="%(thread_error)s::jsonb", values="%(values)s::jsonb")
})
SELECT EXISTS (SELECT FROM runs r WHERE r.thread_id = ended.thread_id AND r.status = 'pending') AS waiting FROM ended
"""
_END_GONE = f"""
WITH gone AS (
    DELETE FROM runs WHERE run_id = %(id)s AND status = 'running' AND worker = %(worker)s AND attempt = %(attempt)s
    RETURNING {COLUMNS}, webhook, started_at
), told AS ({insert_deliveries("gone", COLUMNS, status="%(status)s::text", error="%(error)s::jsonb")})
SELECT thread_id FROM gone
"""
_THE_RUN = "run_id = %(run_id)s AND thread_id = %(thread_id)s"
_READ_OUTCOME = """
SELECT r.status, r.error, r.updated_at, t.status AS thread_status FROM runs r JOIN threads t ON t.thread_id = r.thread_id
WHERE r.run_id = %s AND r.thread_id = %s
"""
# Runs that have frames to show: they are under way, or have kept frames. The position itself is included, because a
# client that has seen all frames may not have seen the end.
_STREAMED = """
SELECT run_id, graph_id, kwargs -> 'stream_mode' AS stream_modes FROM runs r WHERE thread_id = %(thread_id)s AND (
    status IN ('pending', 'running') OR EXISTS (
        SELECT FROM run_frames f WHERE f.run_id = r.run_id AND (f.millis, f.number) >= (%(millis)s, %(number)s)
    )
) ORDER BY run_id
"""
_READ_END = """
SELECT r.status, r.error, r.temporary, t."values" FROM runs r LEFT JOIN threads t ON t.thread_id = r.thread_id
WHERE r.run_id = %s AND r.thread_id = %s
"""


def _read(condition: str) -> str:
    return f"SELECT {COLUMNS} FROM runs WHERE {_THE_RUN} AND {condition}"


def _delete(condition: str) -> str:
    return f"DELETE FROM runs WHERE {_THE_RUN} AND {condition} RETURNING status"


def _cancel(condition: str) -> str:
    return f"""
WITH gone AS (
    DELETE FROM runs WHERE run_id = ANY(%(run_ids)s) AND thread_id = %(thread_id)s AND status = 'pending'
        AND %(action)s = 'rollback' AND {condition}
    RETURNING {COLUMNS}, webhook, started_at
), marked AS (
    UPDATE runs SET
        cancel_action = %(action)s, updated_at = now(),
        status = CASE WHEN status = 'pending' THEN 'interrupted' ELSE status END,
        auth_user = CASE WHEN status <> 'pending' THEN auth_user END
    WHERE run_id = ANY(%(run_ids)s) AND thread_id = %(thread_id)s AND {condition}
        AND (status = 'running' OR (status = 'pending' AND %(action)s <> 'rollback'))
    RETURNING {COLUMNS}, webhook, started_at
), restored AS (
    UPDATE threads t SET metadata = {metadata_without("r.run_id IN (SELECT gone.run_id FROM gone)")}
    WHERE t.thread_id IN (SELECT gone.thread_id FROM gone)
), ended AS (
    SELECT * FROM gone UNION ALL SELECT * FROM marked WHERE status = 'interrupted'
), told AS ({insert_deliveries("ended", COLUMNS, status="'interrupted'", error="%(error)s::jsonb")})
SELECT run_id, status FROM marked UNION ALL SELECT run_id, 'interrupted' FROM gone
"""


def _active_by_status(condition: str) -> str:
    return f"SELECT thread_id, run_id FROM runs WHERE status = ANY(%(statuses)s) AND {condition}"


# Runs that are scheduled for later do not count as waiting.
_QUEUE_SIZE = """
SELECT
    count(*) FILTER (WHERE status = 'pending') AS pending,
    count(*) FILTER (WHERE status = 'running') AS running,
    coalesce(max(waited_s) FILTER (WHERE status = 'pending'), 0)::float8 AS wait_max_s,
    coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY waited_s) FILTER (WHERE status = 'pending'), 0)::float8
        AS wait_median_s
FROM runs, LATERAL (SELECT extract(epoch FROM now() - greatest(created_at, not_before))::float8 AS waited_s) AS waited
WHERE status = 'running' OR (status = 'pending' AND not_before <= now())
"""
_ACTIVE = "SELECT run_id, multitask_strategy FROM runs WHERE thread_id = %s AND status IN ('pending', 'running')"


@dataclass(frozen=True)
class StreamedRun:
    """A run that has frames to show, or will have."""

    run_id: UUID
    graph_id: str
    stream_modes: list[str]

    @property
    def is_protocol(self) -> bool:
        """True if the frames are events of the thread-centric protocol."""
        return PROTOCOL in self.stream_modes


@dataclass(frozen=True)
class LeasedRun:
    """A run leased to this process, with everything needed to execute it."""

    lease: Lease
    run: Run
    graph_id: str
    temporary: bool
    thread_metadata: JsonObject
    assistant_config: JsonObject
    assistant_context: JsonObject
    assistant_metadata: JsonObject
    cancel_action: CancelAction | None  # requested while nobody held the run
    accepted_by: str | None  # the worker whose process follows the run from its first frame
    auth_user: JsonObject | None = None  # on whose behalf it runs


@dataclass(frozen=True)
class Created:
    """The created run, or the reason why it could not be created."""

    run: Run | None = None
    leased: LeasedRun | None = None
    missing: bool = False
    refused: bool = False


@dataclass(frozen=True)
class QueueSize:
    """Runs that are ready and wait, and runs that execute, in all processes; the longest wait in seconds."""

    pending: int
    running: int
    wait_max_s: float
    wait_median_s: float


@dataclass(frozen=True)
class RunEnd:
    """The end of a run, and the state that it leaves on its thread. `values` and `interrupts` are JSON; None keeps the
    stored ones.
    """

    status: RunStatus
    error: RunFailure | None
    thread_status: ThreadStatus
    thread_error: RunFailure | None
    values: bytes | None
    interrupts: bytes | None


def _public(row: dict[str, Any]) -> Run:
    return {name: row[name] for name in COLUMNS.split(", ")}  # type: ignore[return-value]


def _leased(row: dict[str, Any]) -> LeasedRun:
    return LeasedRun(
        lease=Lease(row["run_id"], row["worker"], row["attempt"]),
        run=_public(row),
        graph_id=row["graph_id"],
        temporary=row["temporary"],
        thread_metadata=row["thread_metadata"],
        assistant_config=row["assistant_config"],
        assistant_context=row["assistant_context"],
        assistant_metadata=row["assistant_metadata"],
        cancel_action=row["cancel_action"],
        accepted_by=row["accepted_by"],
        auth_user=row["auth_user"],
    )


def _json(value: bytes | None) -> str | None:
    return None if value is None else without_nul(value).decode()


def _created(row: dict[str, Any] | None) -> Created:
    if row is None or row["found_thread"] is None:
        return Created(missing=True)
    if row["run_id"] is None:
        return Created(refused=True)
    return Created(_public(row), _leased(row) if row["status"] == RunStatus.RUNNING else None)


async def insert_run(connection: AsyncConnection[DictRow], new: NewRun) -> Created:
    """Insert the run into the queue, within the transaction of the caller."""
    return _created(await (await _inserting(connection, new)).fetchone())


async def insert_runs(connection: AsyncConnection[DictRow], news: Sequence[NewRun]) -> list[Created]:
    """Insert the runs into the queue, in the caller's transaction and one round trip. Errors close the connection."""
    try:
        async with connection.pipeline():
            cursors = [await _inserting(connection, new) for new in news]
            return [_created(await cursor.fetchone()) for cursor in cursors]
    except psycopg.Error:
        # After a failed pipeline, the driver takes statements for prepared that the server has not prepared.
        await connection.close()
        raise


async def _inserting(connection: AsyncConnection[DictRow], new: NewRun) -> AsyncCursor[DictRow]:
    sql, values = creation(new, worker="", lease_s=0, start=False)
    return await connection.execute(sql, values, binary=True)


class RunStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def create(self, new: NewRun, *, worker: str, lease_s: float, start: bool) -> Created:
        """Insert the run and, with `start` and an idle thread, lease it to the worker at once."""
        sql, values = creation(new, worker=worker, lease_s=lease_s, start=start)
        while True:
            try:
                row = await self._postgres.fetch_one(sql, values)
            except psycopg.errors.UniqueViolation as error:
                if error.diag.constraint_name != _ONE_RUNNING:
                    raise
                continue  # another run of this thread was faster; the next attempt sees it
            if row is not None and row["found_thread"] is None and new.make_thread and not row["is_hidden"]:
                continue  # somebody else is creating this very thread
            return _created(row)

    async def create_all(self, news: list[NewRun]) -> list[Created]:
        """Insert all runs into the queue, or none. Each has a thread of its own, so none conflicts."""
        async with self._postgres.connection() as connection, connection.transaction() as transaction:
            made = await insert_runs(connection, news)
            if any(created.missing for created in made):
                raise psycopg.Rollback(transaction)
        return made

    async def claim(
        self, worker: str, slots: int, lease_s: float, graph_ids: list[str], *, attempts_max: int, apart: bool = False
    ) -> list[LeasedRun]:
        """Claim up to `slots` runs of these graphs; processes that serve other graphs claim the rest.

        Runs that were lost before and have one attempt left are claimed with `apart` only.
        """
        values = {"worker": worker, "slots": slots, "lease_s": lease_s, "graph_ids": graph_ids}
        values["attempts_max"] = attempts_max
        sql = _CLAIM_APART if apart else _CLAIM
        while True:
            try:
                return [_leased(row) for row in await self._postgres.fetch(sql, values)]
            except psycopg.errors.UniqueViolation as error:
                if error.diag.constraint_name != _ONE_RUNNING:
                    raise

    async def waits_apart(self, attempts_max: int, graph_ids: list[str]) -> bool:
        """Return True if a run waits that can be claimed with `apart`."""
        values = {"attempts_max": attempts_max, "graph_ids": graph_ids}
        return await self._postgres.fetch_one(_WAITS_APART, values) is not None

    async def beat(self, leases: Collection[Lease], lease_s: float) -> dict[UUID, CancelAction | None]:
        """Prolong the leases. Returns the runs that are still held, each with its requested cancellation, if any."""
        rows = await self._postgres.fetch(_BEAT, {**arrays_of(leases), "lease_s": lease_s})
        return {row["run_id"]: row["cancel_action"] for row in rows}

    def beat_from_thread(self, leases: Collection[Lease], lease_s: float) -> None:
        self._postgres.fetch_from_thread(_BEAT, {**arrays_of(leases), "lease_s": lease_s})

    async def reap(self, attempts_max: int) -> int:
        row = await self._postgres.fetch_one(_REAP, {"attempts_max": attempts_max})
        return int(row["n"]) if row else 0

    async def hand_back(self, leases: Collection[Lease]) -> None:
        await self._postgres.execute(_HAND_BACK, arrays_of(leases))

    async def end(self, lease: Lease, end: RunEnd) -> bool | None:
        """End the run. Returns True if another run of the thread waits; None if the lease was lost, and another worker
        ends this run.
        """
        values = {
            **proof_of(lease),
            "status": end.status.value,
            "error": None if end.error is None else Jsonb(end.error),
            "thread_status": end.thread_status,
            "thread_error": None if end.thread_error is None else Jsonb(end.thread_error),
            "values": _json(end.values),
            "interrupts": _json(end.interrupts),
        }
        row = await self._postgres.fetch_one(_END, values)
        return None if row is None else bool(row["waiting"])

    async def end_gone(
        self, lease: Lease, status: RunStatus = RunStatus.INTERRUPTED, error: RunFailure | None = None
    ) -> bool:
        """End a run by deleting its row: a temporary run, or one that is rolled back. The webhook is still called."""
        values = {**proof_of(lease), "status": status.value, "error": None if error is None else Jsonb(error)}
        return await self._postgres.fetch_one(_END_GONE, values) is not None

    async def read(self, thread_id: UUID, run_id: UUID, seen: Filter) -> Run | None:
        condition, values = visible_run(seen, "runs")
        the_run = {"run_id": run_id, "thread_id": thread_id, **values}
        return await self._postgres.fetch_one(_read(condition), the_run)  # type: ignore[return-value]

    async def read_outcome(self, thread_id: UUID, run_id: UUID) -> dict[str, Any] | None:
        """Return `status` and `error` of the run, and `thread_status` as the last run left it."""
        return await self._postgres.fetch_one(_READ_OUTCOME, (run_id, thread_id))

    async def streamed(self, thread_id: UUID, after: tuple[int, int]) -> list[StreamedRun]:
        """Return runs that are under way or have frames at or after the position, oldest first."""
        values = {"thread_id": thread_id, "millis": after[0], "number": after[1]}
        return [StreamedRun(**row) for row in await self._postgres.fetch(_STREAMED, values)]

    async def read_end(self, thread_id: UUID, run_id: UUID) -> dict[str, Any] | None:
        """Return `status`, `error`, `temporary` and the thread's `values`."""
        return await self._postgres.fetch_one(_READ_END, (run_id, thread_id))

    async def page(
        self,
        thread_id: UUID,
        seen: Filter,
        *,
        status: RunStatus | None,
        limit: int,
        offset: int,
        select: list[str] | None,
    ) -> list[dict[str, Any]]:
        """Return the newest runs first, and one row more than requested if there are more."""
        columns = ", ".join(name for name in select if name in _SELECTABLE) if select else COLUMNS
        condition, values = visible_run(seen, "runs")
        clause = "AND status = %(status)s" if status else ""
        sql = f"""SELECT {columns or COLUMNS} FROM runs WHERE thread_id = %(thread_id)s AND {condition} {clause}
            ORDER BY created_at DESC, run_id DESC LIMIT %(limit)s OFFSET %(offset)s"""
        page = {"thread_id": thread_id, "status": status, "limit": limit + 1, "offset": offset}
        return await self._postgres.fetch(sql, {**page, **values})

    async def thread_of(self, run_id: UUID) -> UUID | None:
        row = await self._postgres.fetch_one("SELECT thread_id FROM runs WHERE run_id = %s", (run_id,))
        return row["thread_id"] if row else None

    async def remove(self, thread_id: UUID, run_id: UUID, seen: Filter) -> bool:
        condition, values = visible_run(seen, "runs")
        the_run = {"run_id": run_id, "thread_id": thread_id, **values}
        return await self._postgres.fetch_one(_delete(condition), the_run) is not None

    async def cancel(
        self, thread_id: UUID, run_ids: list[UUID], action: CancelAction, seen: Filter = EVERYTHING
    ) -> dict[UUID, RunStatus]:
        """End pending runs at once; mark running ones, and notify their worker. Omits runs that are neither."""
        condition, values = visible_run(seen, "runs")
        error = Jsonb(CANCELLED[action])
        given = {"thread_id": thread_id, "run_ids": run_ids, "action": action, "error": error}
        rows = await self._postgres.fetch(_cancel(condition), {**given, **values})
        return {row["run_id"]: RunStatus(row["status"]) for row in rows}

    async def with_status(self, statuses: list[RunStatus], seen: Filter) -> dict[UUID, list[UUID]]:
        """Return runs by thread."""
        found: dict[UUID, list[UUID]] = {}
        condition, values = visible_run(seen, "runs")
        wanted = {"statuses": [status.value for status in statuses], **values}
        for row in await self._postgres.fetch(_active_by_status(condition), wanted):
            found.setdefault(row["thread_id"], []).append(row["run_id"])
        return found

    async def queue_size(self) -> QueueSize:
        return QueueSize(**(await self._postgres.fetch(_QUEUE_SIZE))[0])

    async def active(self, thread_id: UUID) -> dict[UUID, MultitaskStrategy]:
        """Return the runs that have not ended, each with its strategy."""
        return {row["run_id"]: row["multitask_strategy"] for row in await self._postgres.fetch(_ACTIVE, (thread_id,))}
