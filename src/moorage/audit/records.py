"""Rows of the audit log, and their form on the wire: events of OCSF 1.7, class API Activity."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from typing_extensions import TypedDict

# Names of operations in the contract, by the names of our routes. Other operations keep the name of their route.
WIRE_NAMES: Mapping[str, str] = {
    "revoke_api_key": "delete_api_key",
    "patch_workspace": "update_workspace",
    "set_handle": "set_tenant_handle",
    "create_session": "create_tracer_session",
    "patch_session": "update_tracer_session",
    "delete_session": "delete_tracer_session",
    "delete_sessions": "delete_tracer_sessions",
    "delete_traces": "delete_runs",
    "put_ttl_settings": "update_ttl_settings",
    "create_price": "create_model_price_map",
    "update_price": "update_model_price_map",
    "delete_price": "delete_model_price_map",
    "create_formula": "create_feedback_formula",
    "put_formula": "update_feedback_formula",
    "delete_formula": "delete_feedback_formula",
    "patch_feedback_config": "update_feedback_config",
    "patch_feedback": "update_feedback",
    "create_tokens": "create_feedback_tokens",
    "create_destination": "create_bulk_export_destination",
    "patch_destination": "update_bulk_export_destination",
    "delete_destination": "delete_bulk_export_destination",
    "create_export": "create_bulk_export",
    "cancel_export": "cancel_bulk_export",
    "patch_deployment": "update_deployment",
    "delete_project": "delete_deployment",
    "create_project_revision": "create_revision",
    "interrupt_project_revision": "interrupt_revision",
}
# Kinds of activities in OCSF, by the first word of an operation.
_ACTIVITIES = {"create": (1, "Create"), "update": (3, "Update"), "delete": (4, "Delete")}
_OTHER = (99, "Other")
_KEY, _USER = "key:", "user:"


class AuditRow(TypedDict):
    """A change with its outcome. `status` is None when the process was killed while the change was made."""

    id: UUID
    at: datetime
    workspace_id: UUID
    actor: str
    operation: str
    method: str
    path: str
    client_host: str | None
    client_port: int | None
    forwarded_for: str | None
    status: int | None
    resource_ids: list[UUID]


class AuditPage(TypedDict):
    """Page of the audit log: events of OCSF's class 6003, newest first. `cursor` is null on the last page."""

    cursor: str | None
    items: list[dict[str, Any]]


def ocsf_event(row: AuditRow) -> dict[str, Any]:
    activity_id, activity = _ACTIVITIES.get(row["operation"].partition("_")[0], _OTHER)
    status_id, status = _status(row["status"])
    message = _message(row)
    return {
        "class_uid": 6003,
        "class_name": "API Activity",
        "category_uid": 6,
        "category_name": "Application Activity",
        "severity_id": 99,
        "type_uid": 600300 + activity_id,
        "activity_id": activity_id,
        "activity_name": activity,
        "status_id": status_id,
        "status": status,
        "time": int(row["at"].timestamp() * 1000),
        "metadata": {"uid": row["id"], "product": {"name": "moorage", "vendor_name": "moorage"}},
        "api": {"operation": row["operation"]},
        "http_request": {"http_method": row["method"], "url": {"path": row["path"]}},
        "http_response": {"code": row["status"]},
        "actor": {"user": {"uid": message["user_id"], "credential_uid": message["api_key_id"]}},
        "src_endpoint": {
            "ip": row["client_host"],
            "port": row["client_port"],
            "intermediate_ips": [part.strip() for part in (row["forwarded_for"] or "").split(",") if part.strip()]
            or None,
        },
        "resources": [{"uid": resource_id} for resource_id in _resources(row)],
        "unmapped": {"original_audit_log": message},
    }


def _resources(row: AuditRow) -> list[UUID]:
    """Return each id once: the answer to a change repeats the id of its path."""
    return list(dict.fromkeys(row["resource_ids"]))


def _status(status: int | None) -> tuple[int, str]:
    if status is None:
        return 0, "Unknown"
    return (1, "Success") if status < 400 else (2, "Failure")


def _message(row: AuditRow) -> dict[str, Any]:
    """Return the change in the form of the contract. `actor` is moorage's own, since users may have no UUID."""
    actor, status = row["actor"], row["status"]
    return {
        "id": row["id"],
        "operation_name": row["operation"],
        "operation_succeeded": None if status is None else status < 400,
        "request_time": row["at"],
        "actor": actor,
        "api_key_id": actor.removeprefix(_KEY) if actor.startswith(_KEY) else None,
        "user_id": _uuid_or_none(actor.removeprefix(_USER)) if actor.startswith(_USER) else None,
        "ls_user_id": None,
        "organization_id": None,
        "workspace_id": row["workspace_id"],
        "enrichments": {
            "request_method": row["method"],
            "request_path": row["path"],
            "client_host": row["client_host"],
            "client_port": row["client_port"],
            "x_forwarded_for": row["forwarded_for"],
            "response_status_code": status,
            "resource_ids": [str(resource_id) for resource_id in _resources(row)],
        },
    }


def _uuid_or_none(text: str) -> str | None:
    try:
        return str(UUID(text))
    except ValueError:
        return None
