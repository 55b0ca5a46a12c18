"""From PlatformSettings to a new API key for the owner of a home who has lost the first key."""

from __future__ import annotations

from uuid import UUID

from moorage.accounts.keys import Keys
from moorage.accounts.store import AccountStore
from moorage.accounts.workspaces import FirstStart, Workspaces
from moorage.audit.log import AuditLog
from moorage.audit.store import AuditStore
from moorage.kernel.access import Plan
from moorage.kernel.migrations import migrate
from moorage.kernel.postgres import Postgres
from moorage.settings.platform import PlatformSettings


async def recover_key(settings: PlatformSettings, conninfo: str, workspace_id: UUID | None) -> FirstStart:
    """Make a new first key. Raises NotFoundError when there is no such workspace, or none at all yet."""
    postgres = Postgres(conninfo, 2)
    await postgres.open()
    try:
        await migrate(postgres, "platform")
        store = AccountStore(postgres, Plan(settings.default_plan))
        made = await Workspaces(store, Keys(store)).recover(workspace_id)
        audit = AuditLog(AuditStore(postgres), settings.audit_days)
        await audit.record_command("create_api_key", "moorage keys recover", made.workspace_id)
        return made
    finally:
        await postgres.close()
