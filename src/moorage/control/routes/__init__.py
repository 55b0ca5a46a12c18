"""The routes of the control plane, by the version of the API: both are served at the root and under `/api-host`."""

from __future__ import annotations

from fastapi import APIRouter

from moorage.control.routes import (
    deployments,
    image_registry,
    integrations,
    listeners,
    logs,
    oauth,
    oauth_sign_ins,
    oauth_tokens,
    revisions,
    uploads,
    v1_projects,
)

v1_router = APIRouter()
v1_router.include_router(v1_projects.router)
v1_router.include_router(integrations.v1_router)

v2_router = APIRouter()
for routed in (deployments, revisions, uploads, image_registry, logs, listeners, oauth, oauth_sign_ins, oauth_tokens):
    v2_router.include_router(routed.router)
v2_router.include_router(integrations.v2_router)
v2_router.include_router(image_registry.registry_router)
