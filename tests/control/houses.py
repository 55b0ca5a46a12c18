"""The rooms of accounts and of the control plane on a real PostgreSQL, without control loop and agents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from moorage.accounts.records import NewWorkspace
from moorage.control.changes import DeploymentRules
from moorage.control.checkouts import GitPolicy
from moorage.control.deployments import Deployments
from moorage.control.forges import Forges
from moorage.control.image_registry import ImageRegistry
from moorage.control.integrations import Integrations
from moorage.control.listeners import Listeners
from moorage.control.logs import Logs
from moorage.control.revisions import Revisions
from moorage.control.room import Control
from moorage.control.routes import v1_router, v2_router
from moorage.control.secret_box import SecretBox
from moorage.control.spool import SpoolRules
from moorage.control.store.deployments import DeploymentStore
from moorage.control.store.integrations import IntegrationStore
from moorage.control.store.listeners import ListenerStore
from moorage.control.store.logs import LogStore
from moorage.control.store.pushed_images import PushedImageStore
from moorage.control.store.revisions import RevisionStore
from moorage.control.store.uploads import UploadStore
from moorage.control.tunnels import Tunnels
from moorage.control.uploads import Uploads
from moorage.kernel.buckets.bucket import directory_bucket
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.guarded_http import GuardedHttp
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from moorage.wiring.oauth import AuthService, auth_service
from tests.accounts.houses import MASTER_KEYS, House, make_house
from tests.control.rows import Rows

PUBLIC_URL = "http://moorage.test"
UPLOAD_BYTES_MAX = 3_000_000
IMAGES_BYTES_MAX = 3_000_000


@dataclass(frozen=True)
class ControlHouse:
    house: House
    room: Control
    rows: Rows
    workspace: NewWorkspace
    wakes: list[None]
    auth: AuthService

    @property
    def workspace_id(self) -> str:
        return str(self.workspace["id"])

    def client(self, key: str | None = None) -> httpx.AsyncClient:
        """Return a client with the key of the workspace, or with another key."""
        return self.house.client(key or self.workspace["api_key"])


async def make_control_house(
    postgres: Postgres,
    folder: Path,
    clickhouse: ClickHouse | None = None,
    public_url: str = PUBLIC_URL,
    *,
    runs_images: bool = True,
) -> ControlHouse:
    house, wakes = make_house(postgres), []
    deployments, revisions, uploads = DeploymentStore(postgres), RevisionStore(postgres), UploadStore(postgres)
    own_names = frozenset({"inside.example.com"})
    rules = DeploymentRules(
        public_url,
        GitPolicy(("https", "ssh")),
        own_names,
        runs_images=runs_images,
        serves_https=True,
    )

    def wake() -> None:
        wakes.append(None)

    auth = auth_service(postgres, MASTER_KEYS, public_url, GuardedHttp(allow_private=True))
    forges = Forges(GuardedHttp(allow_private=True))
    integrations = Integrations(IntegrationStore(postgres), MASTER_KEYS, forges, public_url, wake)
    listeners = Listeners(ListenerStore(postgres), Tunnels())
    room = Control(
        Deployments(deployments, uploads, SecretBox(MASTER_KEYS), rules, wake, integrations, listeners),
        Revisions(revisions, deployments, wake),
        Uploads(
            uploads,
            deployments,
            directory_bucket(folder / "bucket"),
            MASTER_KEYS,
            SpoolRules(public_url, folder / "spool", UPLOAD_BYTES_MAX),
        ),
        ImageRegistry(
            PushedImageStore(postgres),
            deployments,
            directory_bucket(folder / "bucket"),
            MASTER_KEYS,
            SpoolRules(public_url, folder / "spool" / "images", IMAGES_BYTES_MAX),
            runs_images=runs_images,
        ),
        Logs(LogStore(clickhouse or ClickHouse("http://nowhere")), deployments, revisions),
        auth.providers,
        auth.discovery,
        auth.sign_ins,
        auth.tokens,
        integrations,
        listeners,
    )
    house.app.state.control = room
    for root in ("", "/api-host"):
        house.app.include_router(v1_router, prefix=f"{root}/v1")
        house.app.include_router(v2_router, prefix=f"{root}/v2", include_in_schema=not root)
    workspace = await house.make_workspace()
    return ControlHouse(house, room, Rows(postgres, workspace["id"]), workspace, wakes, auth)


def from_git(name: str | None = None, **changes: Any) -> dict[str, Any]:
    """Return a request for a deployment, as in the specification."""
    return {
        "name": name or f"d-{uuid7().hex[-12:]}",
        "source": "github",
        "source_config": {
            "integration_id": None,
            "repo_url": "https://github.com/someone/agent",
            "deployment_type": "dev",
            "build_on_push": False,
            "custom_url": None,
            "resource_spec": None,
        },
        "source_revision_config": {"repo_ref": "main", "graph_config_path": "langgraph.json", "image_uri": None},
        "secrets": [{"name": "OPENAI_API_KEY", "value": "sk-very-secret"}],
    } | changes


def to_upload(name: str | None = None, **changes: Any) -> dict[str, Any]:
    """Return a request as `langgraph deploy --remote` sends it."""
    return {
        "name": name or f"d-{uuid7().hex[-12:]}",
        "source": "internal_source",
        "source_config": {"deployment_type": "dev_zero"},
        "source_revision_config": {},
        "secrets": [],
    } | changes


async def created(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post("/v2/deployments", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()
