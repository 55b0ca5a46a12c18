"""SQL of revisions: rows with leases. Each statement that changes a status is a compare-and-set.

One revision of a deployment is built or deployed at a time. Statements that make or end a revision, or let it go on,
first lock the row of its deployment, so that no revision stays QUEUED behind one that has just ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from moorage.control.records.orders import LeasedRevision, Order
from moorage.control.records.revisions import StoredRevision
from moorage.control.records.states import (
    AT_WORK,
    IMAGE_SOURCES,
    REVISION_MOVES,
    TERMINAL,
    Authentication,
    RevisionStatus,
    Source,
)
from moorage.worker.leases import HELD, MINE, Lease, LeaseStore, proof_of

_MESSAGE_CHARS_MAX = 4000

_COLUMNS = """
    id, deployment_id, workspace_id, number, status, status_message, source, source_config, source_revision_config,
    repo_commit_sha, image_pin, build_of, is_built, created_at, updated_at
"""
_ORDER = """
    r.id AS revision_id, r.deployment_id, r.workspace_id, r.number, r.status, r.source, r.source_config,
    r.source_revision_config, r.repo_commit_sha, r.image_pin, r.build_of, r.is_built,
    d.name AS deployment_name, d.number AS deployment_number, d.active_revision_id
"""


def _words(words: Collection[str]) -> str:
    return ", ".join(f"'{word}'" for word in sorted(words))


_AT_WORK = f"status IN ({_words(AT_WORK)})"
# An image needs no build, and neither does a revision with an earlier build.
_FIRST_STEP = f"""
CASE WHEN {{build_of}} IS NOT NULL OR {{source}} IN ({_words(IMAGE_SOURCES)}) THEN 'AWAITING_DEPLOY' ELSE 'AWAITING_BUILD' END
"""

_LOCK = """
SELECT d.id FROM deployments d JOIN revisions r ON r.deployment_id = d.id WHERE r.id = %s FOR UPDATE OF d
"""
# The revision is QUEUED while another is being built or deployed.
_INSERT = f"""
WITH made AS (
    INSERT INTO revisions (
        id, deployment_id, workspace_id, number, status, source, source_config, source_revision_config,
        repo_commit_sha, image_pin, build_of, actor
    )
    SELECT
        %(id)s, d.id, d.workspace_id, d.revisions_made + 1,
        CASE WHEN EXISTS (SELECT FROM revisions o WHERE o.deployment_id = d.id AND o.{_AT_WORK}) THEN 'QUEUED'
            ELSE {_FIRST_STEP.format(build_of="%(build_of)s::uuid", source="%(source)s")} END,
        %(source)s, %(source_config)s, %(source_revision_config)s, %(repo_commit_sha)s, %(image_pin)s, %(build_of)s, %(actor)s
    FROM deployments d WHERE d.id = %(deployment_id)s
    RETURNING {_COLUMNS}
), known AS (
    UPDATE deployments SET revisions_made = made.number, latest_revision_id = made.id, updated_at = now(),
        source_revision_config = made.source_revision_config, actor = %(actor)s
    FROM made WHERE deployments.id = made.deployment_id
)
SELECT * FROM made
"""
_READ = f"SELECT {_COLUMNS} FROM revisions WHERE workspace_id = %s AND deployment_id = %s AND id = %s"
_PAGE = f"""
SELECT {_COLUMNS} FROM revisions
WHERE workspace_id = %(workspace_id)s AND deployment_id = %(deployment_id)s
    AND (%(statuses)s::text[] IS NULL OR status = ANY(%(statuses)s))
ORDER BY number DESC LIMIT %(limit)s OFFSET %(offset)s
"""

# Also claims revisions that another worker had begun. A revision cannot be claimed before its deployment has a
# database, or while the deployment is being deleted.
_CLAIM = f"""
WITH picked AS MATERIALIZED (
    SELECT r.id FROM revisions r JOIN deployments d ON d.id = r.deployment_id
    WHERE r.worker IS NULL AND r.{_AT_WORK} AND r.not_before <= now() AND d.status = 'READY'
    ORDER BY r.id FOR UPDATE OF r SKIP LOCKED LIMIT %(slots)s
), r AS (
    UPDATE revisions SET worker = %(worker)s, attempt = attempt + 1, updated_at = now(),
        lease_until = now() + %(lease_s)s * interval '1 second'
    FROM picked WHERE revisions.id = picked.id AND worker IS NULL AND {_AT_WORK}
    RETURNING revisions.*
)
SELECT {_ORDER}, r.worker, r.attempt FROM r JOIN deployments d ON d.id = r.deployment_id
"""
_REAP = f"""
UPDATE revisions SET worker = NULL, lease_until = NULL
WHERE worker IS NOT NULL AND lease_until < now() AND {_AT_WORK} AND attempt < %(attempts_max)s
"""
_READ_LOST = f"""
SELECT id, worker, attempt, status FROM revisions
WHERE worker IS NOT NULL AND lease_until < now() AND {_AT_WORK} AND attempt >= %(attempts_max)s
"""
# A revision that moves from BUILDING to AWAITING_DEPLOY has been built.
_MOVE = f"""
UPDATE revisions SET status = %(to)s, status_message = coalesce(%(message)s, status_message), updated_at = now(),
    is_built = is_built OR (status = 'BUILDING' AND %(to)s = 'AWAITING_DEPLOY')
WHERE {MINE} AND status = %(from)s
"""
_SET_AUTHENTICATION = f"UPDATE revisions SET authentication = %(authentication)s WHERE {MINE} AND {_AT_WORK}"
_SET_COMMIT = f"UPDATE revisions SET repo_commit_sha = %(sha)s, updated_at = now() WHERE {MINE} AND {_AT_WORK}"
_SET_IMAGE_PIN = f"UPDATE revisions SET image_pin = %(pin)s, updated_at = now() WHERE {MINE} AND {_AT_WORK}"
# For a revision that serves, or should. Its status is final, so it has no lease.
_REPORT = "UPDATE revisions SET status_message = %s, updated_at = now() WHERE id = %s AND status = 'DEPLOYED'"
# Waiting costs no attempt: otherwise a revision that has waited long would fail when the platform next stops.
_POSTPONE = f"""
UPDATE revisions SET worker = NULL, lease_until = NULL, attempt = attempt - 1,
    not_before = now() + %(delay_s)s * interval '1 second'
WHERE {MINE} AND {_AT_WORK}
"""
_END = f"""
UPDATE revisions SET status = %(to)s, status_message = coalesce(%(message)s, status_message), worker = NULL,
    lease_until = NULL, updated_at = now()
WHERE {MINE} AND status = %(from)s
RETURNING deployment_id
"""
_SET_ACTIVE = "UPDATE deployments SET active_revision_id = %s, updated_at = now() WHERE id = %s"
# The newest waiting revision goes on, and the other ones are SKIPPED. Does nothing while one is at work.
_ADVANCE = f"""
WITH newest AS (
    SELECT id, number FROM revisions WHERE deployment_id = %(deployment_id)s AND status = 'QUEUED'
    ORDER BY number DESC LIMIT 1
)
UPDATE revisions r SET updated_at = now(),
    status = CASE WHEN r.id = newest.id THEN {_FIRST_STEP.format(build_of="r.build_of", source="r.source")} ELSE 'SKIPPED' END,
    status_message = CASE WHEN r.id <> newest.id THEN format('Revision %%s took its place', newest.number) END
FROM newest
WHERE r.deployment_id = %(deployment_id)s AND r.status = 'QUEUED'
    AND NOT EXISTS (SELECT FROM revisions o WHERE o.deployment_id = %(deployment_id)s AND o.{_AT_WORK})
"""
# Ends revisions for a caller. The worker that holds one notices at its next beat that the lease is gone.
_INTERRUPT = f"""
UPDATE revisions SET status = 'INTERRUPTED', status_message = %(message)s, worker = NULL, lease_until = NULL,
    updated_at = now(), actor = %(actor)s
WHERE id = ANY(%(ids)s) AND status IN ({_words(set(RevisionStatus) - TERMINAL)})
RETURNING {_COLUMNS}
"""

_READ_ACTIVE = f"""
SELECT {_ORDER} FROM deployments d JOIN revisions r ON r.id = d.active_revision_id WHERE d.status <> 'AWAITING_DELETE'
"""
_READ_UNDER_WAY = f"SELECT id FROM revisions WHERE {_AT_WORK}"
_READ_ORDER = f"SELECT {_ORDER} FROM revisions r JOIN deployments d ON d.id = r.deployment_id WHERE r.id = %s"
_READ_BUILT = "SELECT id FROM revisions WHERE is_built"
# Forgets builds except the last used ones and those of revisions that serve or are to serve.
_FORGET_BUILDS = f"""
WITH used AS (
    SELECT coalesce(build_of, id) AS build_id, max(number) AS last_number,
        bool_or(status IN ({_words(set(RevisionStatus) - TERMINAL)}) OR id = %(active)s) AS is_needed
    FROM revisions WHERE deployment_id = %(deployment_id)s GROUP BY 1
), ranked AS (
    SELECT build_id, is_needed, row_number() OVER (ORDER BY last_number DESC) AS place
    FROM used JOIN revisions b ON b.id = build_id AND b.is_built
)
UPDATE revisions SET is_built = FALSE FROM ranked
WHERE id = build_id AND place > %(keep)s AND NOT is_needed
RETURNING id
"""
_LOCK_DEPLOYMENT = "SELECT active_revision_id FROM deployments WHERE id = %s FOR UPDATE"


@dataclass(frozen=True)
class NewRevision:
    id: UUID
    source: Source
    source_config: dict[str, Any]
    source_revision_config: dict[str, Any]
    repo_commit_sha: str | None = None
    image_pin: str | None = None
    build_of: UUID | None = None


async def insert_revision(
    connection: AsyncConnection[DictRow], deployment_id: UUID, new: NewRevision, actor: str
) -> StoredRevision:
    """Insert the newest revision of a deployment whose row the transaction has locked."""
    values = {
        "id": new.id,
        "deployment_id": deployment_id,
        "source": new.source.value,
        "source_config": Jsonb(new.source_config),
        "source_revision_config": Jsonb(new.source_revision_config),
        "repo_commit_sha": new.repo_commit_sha,
        "image_pin": new.image_pin,
        "build_of": new.build_of,
        "actor": actor,
    }
    made = await (await connection.execute(_INSERT, values)).fetchone()
    assert made, "the deployment is locked by this transaction"
    return cast(StoredRevision, made)


async def interrupt_revisions(
    connection: AsyncConnection[DictRow], deployment_id: UUID, revision_ids: Sequence[UUID], message: str, actor: str
) -> list[StoredRevision]:
    """End the revisions that have not ended, and let the next one go on. The caller has locked the deployment's row."""
    values = {"ids": list(revision_ids), "message": message, "actor": actor}
    ended = await (await connection.execute(_INTERRUPT, values)).fetchall()
    await connection.execute(_ADVANCE, {"deployment_id": deployment_id})
    return cast(list[StoredRevision], ended)


class RevisionStore(LeaseStore):
    """Store of revisions: reads them, and writes the control loop's changes. New revisions are made by `deployments`,
    under their deployment's lock.
    """

    BEAT = f"UPDATE revisions SET lease_until = now() + %(lease_s)s * interval '1 second' {HELD} AND {_AT_WORK} RETURNING id"
    HAND_BACK = f"UPDATE revisions SET worker = NULL, lease_until = NULL, attempt = attempt - 1 {HELD} AND {_AT_WORK}"

    async def read(self, workspace_id: UUID, deployment_id: UUID, revision_id: UUID) -> StoredRevision | None:
        row = await self._postgres.fetch_one(_READ, (workspace_id, deployment_id, revision_id))
        return cast(StoredRevision | None, row)

    async def page(
        self, workspace_id: UUID, deployment_id: UUID, statuses: Sequence[str] | None, limit: int, offset: int
    ) -> list[StoredRevision]:
        """Return a page of revisions, newest first."""
        values = {"workspace_id": workspace_id, "deployment_id": deployment_id, "limit": limit, "offset": offset}
        statuses = None if statuses is None else list(statuses)
        return cast(list[StoredRevision], await self._postgres.fetch(_PAGE, {**values, "statuses": statuses}))

    # --- leases -------------------------------------------------------------------------------------------------------

    async def claim(self, worker: str, slots: int, lease_s: float) -> list[LeasedRevision]:
        """Claim revisions, the oldest first. The status tells how far an earlier holder has come."""
        rows = await self._postgres.fetch(_CLAIM, {"worker": worker, "slots": slots, "lease_s": lease_s})
        return [LeasedRevision(Lease(row["revision_id"], row["worker"], row["attempt"]), _order(row)) for row in rows]

    async def reap(self, attempts_max: int) -> int:
        """Requeue revisions whose lease ran out, and fail those whose lease ran out `attempts_max` times."""
        values = {"attempts_max": attempts_max}
        lost = await self._postgres.fetch(_READ_LOST, values)
        for row in lost:
            lease, status = Lease(row["id"], row["worker"], row["attempt"]), RevisionStatus(row["status"])
            message = f"The platform stopped {row['attempt']} times while it worked on this revision"
            await self.finish(lease, status, _failure_of(status), message)
        return len(lost) + await self._postgres.execute(_REAP, values)

    async def postpone(self, lease: Lease, delay_s: float) -> bool:
        """Put the revision back into the queue for a while. Returns False when the lease was lost."""
        return bool(await self._postgres.execute(_POSTPONE, {**proof_of(lease), "delay_s": delay_s}))

    # --- progress, fenced by the lease --------------------------------------------------------------------------------

    async def move(
        self, lease: Lease, came_from: RevisionStatus, to: RevisionStatus, message: str | None = None
    ) -> bool:
        """Change the status. Returns False when the lease was lost, or the status is not `came_from`."""
        assert to in REVISION_MOVES[came_from] - TERMINAL, f"a revision does not move from {came_from} to {to}"
        values = {**proof_of(lease), "from": came_from.value, "to": to.value, "message": _text(message)}
        return bool(await self._postgres.execute(_MOVE, values))

    async def finish(
        self, lease: Lease, came_from: RevisionStatus, to: RevisionStatus, message: str | None = None
    ) -> bool:
        """End the revision. A DEPLOYED one becomes the active revision; then the next one in the queue may go on.

        Returns False as `move` does; then nothing has changed.
        """
        assert to in REVISION_MOVES[came_from] & TERMINAL, f"a revision does not end as {to} from {came_from}"
        values = {**proof_of(lease), "from": came_from.value, "to": to.value, "message": _text(message)}
        async with self._postgres.connection() as connection, connection.transaction():
            await connection.execute(_LOCK, (lease.key,))
            ended = await (await connection.execute(_END, values)).fetchone()
            if ended is None:
                return False
            deployment_id = ended["deployment_id"]
            if to is RevisionStatus.DEPLOYED:
                await connection.execute(_SET_ACTIVE, (lease.key, deployment_id))
            await connection.execute(_ADVANCE, {"deployment_id": deployment_id})
            return True

    async def set_authentication(self, lease: Lease, authentication: Authentication) -> bool:
        values = {**proof_of(lease), "authentication": authentication}
        return bool(await self._postgres.execute(_SET_AUTHENTICATION, values))

    async def set_commit(self, lease: Lease, sha: str) -> bool:
        return bool(await self._postgres.execute(_SET_COMMIT, {**proof_of(lease), "sha": sha}))

    async def set_image_pin(self, lease: Lease, pin: str) -> bool:
        return bool(await self._postgres.execute(_SET_IMAGE_PIN, {**proof_of(lease), "pin": pin}))

    async def report(self, revision_id: UUID, message: str | None) -> None:
        """Set the message of a deployed revision; None means that it runs well."""
        await self._postgres.execute(_REPORT, (_text(message), revision_id))

    # --- what should be there -----------------------------------------------------------------------------------------

    async def read_active(self) -> list[Order]:
        """Read the active revision of every deployment that should serve."""
        return [_order(row) for row in await self._postgres.fetch(_READ_ACTIVE)]

    async def read_under_way(self) -> set[UUID]:
        """Read revisions that are being built or deployed, or that wait for a new lease after their holder died."""
        return {row["id"] for row in await self._postgres.fetch(_READ_UNDER_WAY)}

    async def read_order(self, revision_id: UUID) -> Order | None:
        row = await self._postgres.fetch_one(_READ_ORDER, (revision_id,))
        return _order(row) if row else None

    async def read_built(self) -> set[UUID]:
        """Return the revisions whose build must be kept; other builds on a disk are leftovers."""
        return {row["id"] for row in await self._postgres.fetch(_READ_BUILT)}

    async def forget_builds(self, deployment_id: UUID, keep: int) -> list[UUID]:
        """Forget a deployment's builds except the `keep` that were used last. No revision can return to a forgotten
        build.
        """
        async with self._postgres.connection() as connection, connection.transaction():
            locked = await (await connection.execute(_LOCK_DEPLOYMENT, (deployment_id,))).fetchone()
            if locked is None:
                return []
            values = {"deployment_id": deployment_id, "keep": keep, "active": locked["active_revision_id"]}
            return [row["id"] for row in await (await connection.execute(_FORGET_BUILDS, values)).fetchall()]


def _order(row: DictRow) -> Order:
    names = Order.__dataclass_fields__
    values = {name: row[name] for name in names}
    return Order(**{**values, "status": RevisionStatus(row["status"]), "source": Source(row["source"])})


def _failure_of(status: RevisionStatus) -> RevisionStatus:
    builds = status in {RevisionStatus.AWAITING_BUILD, RevisionStatus.BUILDING}
    return RevisionStatus.BUILD_FAILED if builds else RevisionStatus.DEPLOY_FAILED


def _text(message: str | None) -> str | None:
    """Keep the end of the message, which has the reason, and replace NUL, which PostgreSQL's text cannot hold."""
    return None if message is None else message.replace("\0", "\ufffd")[-_MESSAGE_CHARS_MAX:]
