"""Feedback keys: the meaning of their values, formulas, and tokens for giving feedback without an API key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from moorage.kernel.access import Caller
from moorage.kernel.errors import BadRequestError, InvalidRequestError, NotFoundError
from moorage.traces.feedback import Feedback
from moorage.traces.records.feedback import (
    FeedbackByToken,
    FeedbackConfigCreate,
    FeedbackConfigPatch,
    FeedbackConfigRow,
    FeedbackConfigSearch,
    FeedbackCreate,
    FeedbackSourceGiven,
    FeedbackToken,
    FeedbackTokenCreate,
    Formula,
    FormulaWrite,
)
from moorage.traces.records.words import FeedbackStat
from moorage.traces.store.feedback_keys import FeedbackKeyStore

TOKENS_MAX = 100
_TOKEN_LIFE = timedelta(hours=3)
_TOKEN_LIFE_MAX = timedelta(days=365)


class FeedbackKeys:
    def __init__(self, keys: FeedbackKeyStore) -> None:
        self._keys = keys

    # --- how values are meant -------------------------------------------------------------------------------------

    async def create_config(self, caller: Caller, new: FeedbackConfigCreate) -> FeedbackConfigRow:
        """Idempotent: returns the existing row. Raises BadRequestError when the key has a different configuration."""
        made = await self._keys.insert_config(
            caller.workspace_id,
            new.feedback_key,
            new.feedback_config,
            lower_is_better=bool(new.is_lower_score_better),
            actor=caller.actor,
        )
        if made is not None:
            return made
        found = await self._keys.read_config(caller.workspace_id, new.feedback_key)
        if found is None or found["feedback_config"] != new.feedback_config.model_dump(mode="json"):
            raise BadRequestError(
                f"The key {new.feedback_key!r} has another configuration; change it with PATCH, or delete it first"
            )
        return found

    async def list_configs(self, caller: Caller, search: FeedbackConfigSearch) -> list[FeedbackConfigRow]:
        return await self._keys.page_configs(caller.workspace_id, search)

    async def update_config(self, caller: Caller, patch: FeedbackConfigPatch) -> FeedbackConfigRow:
        changed = await self._keys.update_config(caller.workspace_id, patch, caller.actor)
        if changed is None:
            raise NotFoundError(f"The key {patch.feedback_key!r} has no configuration")
        return changed

    async def delete_config(self, caller: Caller, key: str) -> None:
        if not await self._keys.remove_config(caller.workspace_id, key):
            raise NotFoundError(f"The key {key!r} has no configuration")

    # --- formulas -------------------------------------------------------------------------------------------------

    async def create_formula(self, caller: Caller, new: FormulaWrite) -> Formula:
        """Raises ConflictError when the key has a formula for the same project and dataset."""
        return await self._keys.insert_formula(caller.workspace_id, new, caller.actor)

    async def get_formula(self, caller: Caller, formula_id: UUID) -> Formula:
        return _found(await self._keys.read_formula(caller.workspace_id, formula_id), formula_id)

    async def list_formulas(
        self, caller: Caller, *, dataset_id: UUID | None, session_id: UUID | None, limit: int, offset: int
    ) -> list[Formula]:
        return await self._keys.page_formulas(
            caller.workspace_id, dataset_id=dataset_id, session_id=session_id, limit=limit, offset=offset
        )

    async def update_formula(self, caller: Caller, formula_id: UUID, new: FormulaWrite) -> Formula:
        changed = await self._keys.update_formula(caller.workspace_id, formula_id, new, caller.actor)
        return _found(changed, formula_id)

    async def delete_formula(self, caller: Caller, formula_id: UUID) -> None:
        if not await self._keys.remove_formula(caller.workspace_id, formula_id):
            raise NotFoundError(f"Feedback formula with id {formula_id} not found")


def _found(formula: Formula | None, formula_id: UUID) -> Formula:
    if formula is None:
        raise NotFoundError(f"Feedback formula with id {formula_id} not found")
    return formula


def composed(stats: dict[str, FeedbackStat], formulas: Iterable[Formula]) -> dict[str, FeedbackStat]:
    """Add to a project's statistics the keys that formulas compute from the averages of other keys.

    A formula is left out while one of its parts has no scores.
    """
    found = dict(stats)
    for formula in formulas:
        parts = formula["formula_parts"]
        averages = [stats[part["key"]]["avg"] if part["key"] in stats else None for part in parts]
        if any(average is None for average in averages):
            continue
        total = sum(part["weight"] * (average or 0.0) for part, average in zip(parts, averages, strict=True))
        value = total if formula["aggregation_type"] == "sum" else total / len(parts)
        found[formula["feedback_key"]] = _single(value, min(stats[part["key"]]["n"] for part in parts))
    return found


def _single(value: float, n: int) -> FeedbackStat:
    return {
        "n": n,
        "avg": value,
        "min": None,
        "max": None,
        "stdev": None,
        "errors": 0,
        "values": {},
        "comments": [],
        "sources": [],
        "contains_thread_feedback": False,
    }


class FeedbackTokens:
    """A token is good for feedback of one key on one run, without an API key, until it expires."""

    def __init__(self, keys: FeedbackKeyStore, feedback: Feedback, *, public_url: str) -> None:
        self._keys = keys
        self._feedback = feedback
        self._public_url = public_url

    async def create(self, caller: Caller, wanted: Sequence[FeedbackTokenCreate]) -> list[FeedbackToken]:
        """Raises InvalidRequestError for a token that would expire in the past, or more than a year from now."""
        # Not a UUIDv7: the id is a secret, and must not be guessed from the time.
        tokens = [(uuid4(), new.model_copy(update={"expires_at": _expiry(new)})) for new in wanted]
        await self._keys.insert_tokens(caller.workspace_id, tokens, caller.actor)
        for new in wanted:
            if new.feedback_config is not None:
                await self._keys.insert_config(
                    caller.workspace_id,
                    new.feedback_key,
                    new.feedback_config,
                    lower_is_better=False,
                    actor=caller.actor,
                )
        return [self._shown(secret, _expiry(new), new.feedback_key) for secret, new in tokens]

    async def list(self, caller: Caller, run_id: UUID, *, limit: int, offset: int) -> Sequence[FeedbackToken]:
        rows = await self._keys.page_tokens(caller.workspace_id, run_id, limit, offset)
        return [self._shown(row["id"], row["expires_at"], row["feedback_key"]) for row in rows]

    async def redeem(self, secret: UUID, given: FeedbackByToken) -> None:
        """Raises NotFoundError when the token is unknown or has expired."""
        token = await self._keys.read_token(secret)
        if token is None:
            raise NotFoundError("The feedback token is not known, or has expired")
        new = FeedbackCreate(
            id=token["feedback_id"],
            run_id=token["run_id"],
            key=token["feedback_key"],
            score=given.score,
            value=given.value,
            comment=given.comment,
            correction=given.correction,
            feedback_source=FeedbackSourceGiven(metadata=given.metadata),
        )
        await self._feedback.write(token["workspace_id"], new, actor="feedback-token")

    def _shown(self, secret: UUID, expires_at: datetime, key: str) -> FeedbackToken:
        url = f"{self._public_url}/api/v1/feedback/tokens/{secret}"
        return {"id": secret, "url": url, "expires_at": expires_at, "feedback_key": key}


def _expiry(new: FeedbackTokenCreate) -> datetime:
    now = datetime.now(UTC)
    life = new.expires_in
    asked = timedelta(days=life.days, hours=life.hours, minutes=life.minutes) if life else _TOKEN_LIFE
    expires_at = new.expires_at or now + asked
    if not now < expires_at <= now + _TOKEN_LIFE_MAX:
        raise InvalidRequestError("A feedback token expires in the future, and within a year")
    return expires_at
