"""The audit log on PostgreSQL: append-only, and removed by age alone. A request that it cannot record is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors

from moorage.audit.log import AuditLog
from moorage.audit.store import AuditStore
from moorage.http.audit import ChangeOutcomes
from moorage.kernel.access import Caller, Plan, Scope
from moorage.kernel.errors import UnavailableError
from moorage.kernel.postgres import Postgres
from tests.accounts.houses import House

pytest_plugins = "tests.accounts.fixtures"

INSERT = """
INSERT INTO audit_changes (id, at, workspace_id, actor, operation, method, path, resource_ids)
VALUES (gen_random_uuid(), now() - %s * interval '1 day', gen_random_uuid(), 'key:x', 'create_x', 'POST', '/x', '{}')
RETURNING id
"""


@pytest.fixture
def log(platform_postgres: Postgres) -> AuditLog:
    return AuditLog(AuditStore(platform_postgres), days=60)


def operator(workspace_id: UUID) -> Caller:
    return Caller(workspace_id, Plan.ENTERPRISE, frozenset({Scope.OPERATOR}), "key:x")


async def rows_of(log: AuditLog, workspace_id: UUID) -> list[dict]:
    start, end = datetime.now(UTC) - timedelta(days=999), datetime.now(UTC) + timedelta(minutes=5)
    return (await log.page(operator(workspace_id), start, end, workspace_id=workspace_id, limit=100))["items"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_changes SET actor = 'nobody'",
        "DELETE FROM audit_changes",
        "TRUNCATE audit_changes",
        "UPDATE audit_outcomes SET status = 200",
        "DELETE FROM audit_outcomes",
        "TRUNCATE audit_outcomes",
    ],
)
async def test_the_database_takes_no_row_back(platform_conninfo: str, log: AuditLog, statement: str) -> None:
    workspace_id = uuid4()
    await log.record_command("create_x", "moorage x", workspace_id)
    async with await psycopg.AsyncConnection.connect(platform_conninfo, autocommit=True) as connection:
        with pytest.raises(errors.InsufficientPrivilege, match="append-only"):
            await connection.execute(statement)
    [row] = await rows_of(log, workspace_id)
    assert (row["unmapped"]["original_audit_log"]["actor"], row["status"]) == ("installation", "Success")


async def test_nobody_makes_an_old_row(platform_conninfo: str) -> None:
    async with await psycopg.AsyncConnection.connect(platform_conninfo, autocommit=True) as connection:
        [row_id] = await (await connection.execute(INSERT, (90,))).fetchone()
        young = await connection.execute(
            "SELECT at > now() - interval '1 minute' FROM audit_changes WHERE id = %s", [row_id]
        )
        assert await young.fetchone() == (True,)


async def test_retention_removes_by_age_alone(platform_conninfo: str, log: AuditLog) -> None:
    async with await psycopg.AsyncConnection.connect(platform_conninfo, autocommit=True) as connection:
        await connection.execute("ALTER TABLE audit_changes DISABLE TRIGGER audit_changes_date")
        ids = {days: (await (await connection.execute(INSERT, (days,))).fetchone())[0] for days in (0, 29, 59, 61)}
        await connection.execute("ALTER TABLE audit_changes ENABLE TRIGGER audit_changes_date")
        await log.forget()
        kept = {row[0] for row in await (await connection.execute("SELECT id FROM audit_changes")).fetchall()}
    assert {days for days, row_id in ids.items() if row_id in kept} == {0, 29, 59}


class _Away(AuditLog):
    """A log whose database is away, from the beginning or when the outcome is written."""

    def __init__(self, store: AuditStore, fails: str) -> None:
        super().__init__(store, 60)
        self._fails = fails

    async def begin(self, change) -> None:
        if self._fails == "begin":
            raise UnavailableError("PostgreSQL is away")
        await super().begin(change)

    async def end(self, change_id, status, resource_ids) -> None:
        raise UnavailableError("PostgreSQL is away")


@pytest.mark.parametrize(("fails", "status", "keys"), [("begin", 503, 1), ("end", 200, 2)])
async def test_without_its_row_nothing_is_changed(
    house: House, platform_postgres: Postgres, fails: str, status: int, keys: int
) -> None:
    """A change whose outcome could not be written has a row without an outcome."""
    house.app.add_middleware(ChangeOutcomes)
    house.app.state.audit = _Away(AuditStore(platform_postgres), fails)
    workspace = await house.make_workspace()
    async with house.client(workspace["api_key"]) as http:
        assert (await http.post("/api-key", json={})).status_code == status
        assert len((await http.get("/api-key")).json()) == keys
    rows = await rows_of(house.app.state.audit, workspace["id"])
    assert [row["status"] for row in rows] == ([] if fails == "begin" else ["Unknown"])


async def test_a_crash_is_an_outcome(
    house: House, platform_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.app.add_middleware(ChangeOutcomes)
    house.app.state.audit = log = AuditLog(AuditStore(platform_postgres), 60)
    workspace = await house.make_workspace()
    monkeypatch.setattr(house.accounts.keys, "create", None)
    async with house.client(workspace["api_key"]) as http:
        assert (await http.post("/api-key", json={})).status_code == 500
    [row] = await rows_of(log, workspace["id"])
    assert (row["status"], row["http_response"]["code"]) == ("Failure", 500)
