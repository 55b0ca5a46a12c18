"""SQL that creates a run, in one statement for all cases."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from moorage.agents.records.filters import EVERYTHING, Filter
from moorage.agents.records.runs import MultitaskStrategy
from moorage.agents.records.threads import Ttl
from moorage.agents.records.words import JsonObject
from moorage.agents.store.visible import visible


@dataclass(frozen=True)
class NewRun:
    """The values of a new run."""

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    metadata: JsonObject
    kwargs: bytes
    thread_config: bytes
    strategy: MultitaskStrategy
    after_s: float
    temporary: bool
    make_thread: bool
    followed: bool
    webhook: str | None = None
    auth_user: bytes | None = None
    actor: str | None = None
    ttl: Ttl | None = None  # of a thread that is created for the run
    seen: Filter = EVERYTHING  # threads, and assistants, that the user may run
    assistants_seen: Filter = EVERYTHING


def creation(new: NewRun, *, worker: str, lease_s: float, start: bool) -> tuple[str, dict[str, Any]]:
    """Return the statement and its parameters."""
    on_thread, seen = visible(new.seen, "t.metadata")
    of_assistant, assistants_seen = visible(new.assistants_seen, "a.metadata", prefix="assistants_seen")
    values = {
        "run_id": new.run_id,
        "thread_id": new.thread_id,
        "assistant_id": new.assistant_id,
        "metadata": Jsonb(new.metadata),
        "thread_metadata": Jsonb(new.metadata),
        "kwargs": new.kwargs.decode(),
        "thread_config": new.thread_config.decode(),
        "strategy": new.strategy,
        "after_s": new.after_s,
        "temporary": new.temporary,
        "make_thread": new.make_thread,
        "followed": new.followed,
        "webhook": new.webhook,
        "auth_user": None if new.auth_user is None else new.auth_user.decode(),
        "actor": new.actor,
        "ttl": new.ttl.ttl if new.ttl else None,
        "ttl_strategy": new.ttl.strategy if new.ttl else None,
        "start": start and new.after_s == 0,
        "worker": worker,
        "lease_s": lease_s,
    }
    return _create(on_thread, of_assistant), {**values, **seen, **assistants_seen}


# One round trip from the request to a run that is already leased to this process, if it may start now:
# - KEY SHARE serializes this with a concurrent delete of the thread, but not with other runs;
# - on a busy thread the run waits in the queue, or is refused (strategy reject);
# - two concurrent statements may both see an idle thread: the unique index runs_one_running fails the second, and the
#   caller repeats it;
# - a thread or assistant that the user may not see is treated as missing.
@lru_cache(64)
def _create(on_thread: str, of_assistant: str) -> str:
    return f"""
WITH assistant AS (
    SELECT assistant_id, graph_id, config, context, metadata FROM assistants a
    WHERE assistant_id = %(assistant_id)s AND {of_assistant}
), locked AS (
    SELECT thread_id, metadata FROM threads t WHERE thread_id = %(thread_id)s AND {on_thread} FOR KEY SHARE
), made AS (
    INSERT INTO threads (thread_id, metadata, actor, ttl_minutes, ttl_strategy, expires_at)
    SELECT %(thread_id)s, %(thread_metadata)s::jsonb
        || jsonb_build_object('graph_id', graph_id, 'assistant_id', assistant_id), %(actor)s::text,
        %(ttl)s::float8, %(ttl_strategy)s::text, now() + %(ttl)s::float8 * interval '1 minute'
    FROM assistant WHERE %(make_thread)s
    ON CONFLICT (thread_id) DO NOTHING
    RETURNING thread_id, metadata
), thread AS (
    SELECT * FROM locked
    UNION ALL SELECT * FROM made
    UNION ALL SELECT %(thread_id)s, '{{}}'::jsonb WHERE %(temporary)s
), busy AS (
    SELECT EXISTS (
        SELECT FROM runs WHERE thread_id = %(thread_id)s AND status IN ('pending', 'running')
    ) AS busy
), run AS (
    INSERT INTO runs (
        run_id, thread_id, assistant_id, graph_id, temporary, metadata, kwargs, multitask_strategy, not_before,
        status, attempt, worker, lease_until, accepted_by, webhook, started_at, auth_user, actor
    )
    SELECT
        %(run_id)s, thread.thread_id, assistant.assistant_id, assistant.graph_id, %(temporary)s, %(metadata)s,
        %(kwargs)s, %(strategy)s, now() + %(after_s)s * interval '1 second',
        CASE WHEN start THEN 'running' ELSE 'pending' END,
        CASE WHEN start THEN 1 ELSE 0 END,
        CASE WHEN start THEN %(worker)s END,
        CASE WHEN start THEN now() + %(lease_s)s * interval '1 second' END,
        CASE WHEN %(followed)s THEN %(worker)s END,
        %(webhook)s::text,
        CASE WHEN start THEN now() END,
        %(auth_user)s::json, %(actor)s::text
    FROM assistant, thread, busy, LATERAL (SELECT %(start)s AND NOT busy AS start) AS chance
    WHERE NOT (busy AND %(strategy)s = 'reject')
    RETURNING run_id, thread_id, assistant_id, graph_id, temporary, created_at, updated_at, status, metadata,
        kwargs, multitask_strategy, attempt, worker, cancel_action, accepted_by, auth_user
), touched AS (
    UPDATE threads t
    SET metadata = t.metadata || jsonb_build_object('graph_id', a.graph_id, 'assistant_id', a.assistant_id),
        before_runs = coalesce(t.before_runs, jsonb_strip_nulls(jsonb_build_object(
            'graph_id', t.metadata->'graph_id', 'assistant_id', t.metadata->'assistant_id'
        ))),
        config = %(thread_config)s, updated_at = now()
    FROM assistant a, run
    WHERE t.thread_id = run.thread_id
)
SELECT run.*, thread.thread_id AS found_thread, thread.metadata AS thread_metadata,
    thread.thread_id IS NULL AND EXISTS (SELECT FROM threads WHERE thread_id = %(thread_id)s) AS is_hidden,
    assistant.config AS assistant_config, assistant.context AS assistant_context,
    assistant.metadata AS assistant_metadata
FROM assistant LEFT JOIN thread ON TRUE LEFT JOIN run ON TRUE
"""
