"""Rows of new runs, made from requests: the arguments of the graph's call, and the user on whose behalf it runs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from moorage.agents.assistants import mirrored
from moorage.agents.principals import Principal, Sent
from moorage.agents.records.filters import Filter
from moorage.agents.records.runs import RunCreate, RunCreateStateless, RunStatus
from moorage.agents.records.threads import Ttl
from moorage.agents.records.users import stored
from moorage.agents.records.words import JsonObject
from moorage.agents.store.new_runs import NewRun
from moorage.kernel.encoding import encode_for_storage
from moorage.kernel.ids import uuid7


def asked_run(
    thread_id: UUID | None, run_id: UUID, assistant_id: UUID, new: RunCreateStateless, sent: Sent
) -> JsonObject:
    """Return the run as handlers see it. They may change its metadata and the arguments of the call. Raises
    BadRequestError.
    """
    config = new.config.model_dump(exclude_none=True) if new.config else {}
    last_config, _ = mirrored(config, new.context)
    if sent.configurable:
        configurable = (last_config or {}).get("configurable") or {}
        config["configurable"] = {**configurable, **sent.configurable}
    return {
        "assistant_id": assistant_id,
        "thread_id": thread_id,
        "run_id": run_id,
        "status": RunStatus.PENDING.value,
        "metadata": new.metadata or {},
        "kwargs": _kwargs(new, config, sent.request_id),
        "multitask_strategy": new.multitask_strategy,
        "if_not_exists": new.if_not_exists if isinstance(new, RunCreate) else "create",
        "after_seconds": new.after_seconds or 0,
    }


def new_run(
    who: Principal,
    asked: JsonObject,
    new: RunCreateStateless,
    seen: Filter,
    assistants_seen: Filter,
    *,
    followed: bool = False,
    tells: bool = True,
    ttl: Ttl | None = None,
) -> NewRun:
    """Make the row of a run, which `tells` its webhook when it ends. `ttl` belongs to a thread that is made for the
    run.
    """
    thread_id, kwargs = asked["thread_id"], asked["kwargs"]
    # The thread keeps the config of its last run, so that its graph is opened in the same way for reading the state.
    last_config = {**kwargs["config"], "configurable": kwargs["config"].get("configurable") or kwargs["context"]}
    temporary = thread_id is None and new.on_completion == "delete"
    return NewRun(
        run_id=asked["run_id"],
        thread_id=thread_id or uuid7(),
        assistant_id=asked["assistant_id"],
        metadata=asked["metadata"],
        kwargs=encode_for_storage(kwargs),
        thread_config=encode_for_storage(last_config),
        strategy=new.multitask_strategy,
        after_s=new.after_seconds or 0,
        temporary=temporary,
        make_thread=not temporary and _makes_thread(thread_id, new),
        followed=followed,
        webhook=new.webhook if tells else None,
        auth_user=None if who.user is None else encode_for_storage(stored(who.user)),
        actor=who.identity,
        seen=seen,
        assistants_seen=assistants_seen,
        ttl=ttl,
    )


def _makes_thread(thread_id: UUID | None, new: RunCreateStateless) -> bool:
    return thread_id is None or (isinstance(new, RunCreate) and new.if_not_exists == "create")


def _kwargs(new: RunCreateStateless, config: dict[str, Any], request_id: str | None) -> dict[str, Any]:
    """Return the arguments of the graph's call, as the row stores them and the API shows them."""
    checkpoint = None
    if isinstance(new, RunCreate):
        checkpoint = new.checkpoint.model_dump(exclude_none=True) if new.checkpoint else {}
        if new.checkpoint_id:
            checkpoint["checkpoint_id"] = new.checkpoint_id
    return {
        "input": new.input,
        "command": new.command.model_dump() if new.command else None,
        "config": config,
        "context": new.context or {},
        "checkpoint": checkpoint or None,
        "stream_mode": new.stream_modes,
        "interrupt_before": new.interrupt_before,
        "interrupt_after": new.interrupt_after,
        "webhook": new.webhook,
        "feedback_keys": new.feedback_keys,
        "temporary": not isinstance(new, RunCreate) and new.on_completion == "delete",
        "subgraphs": new.stream_subgraphs,
        "resumable": new.stream_resumable,
        "checkpoint_during": new.checkpoint_during,
        "durability": _durability(new),
        "request_id": request_id,
    }


def _durability(new: RunCreateStateless) -> str:
    if new.durability is not None:
        return new.durability
    if new.checkpoint_during is not None:
        return "async" if new.checkpoint_during else "exit"
    # A stateless run is rarely inspected before its end, so it saves one checkpoint.
    return "async" if isinstance(new, RunCreate) else "exit"
