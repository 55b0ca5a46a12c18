"""`/feedback` and `/feedback-configs`. A token's routes ask for no key: the token is the permission."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import RootModel
from starlette.requests import Request
from starlette.responses import Response

from moorage.http.access import needs
from moorage.http.answers import empty_answer
from moorage.http.operations import operation
from moorage.http.requests import read_json
from moorage.kernel.access import Caller, Scope
from moorage.traces.records.feedback import (
    FeedbackByLink,
    FeedbackByToken,
    FeedbackConfigCreate,
    FeedbackConfigPatch,
    FeedbackConfigRow,
    FeedbackConfigSearch,
    FeedbackCreate,
    FeedbackPatch,
    FeedbackRow,
    FeedbackSearch,
    FeedbackToken,
    FeedbackTokenCreate,
    FeedbackTokenSearch,
    Formula,
    FormulaSearch,
    FormulaWrite,
)
from moorage.traces.routes.answers import json_answer, page_answer
from moorage.traces.routes.rooms import traces

router = APIRouter(tags=["feedback"])

_REFUSED = (401, 403)
Reader = Annotated[Caller, needs(Scope.FEEDBACK_READ)]
Writer = Annotated[Caller, needs(Scope.FEEDBACK_WRITE)]


# --- tokens: before `/feedback/{feedback_id}`, which would match their paths ------------------------------------------


class FeedbackTokensCreate(RootModel[FeedbackTokenCreate | list[FeedbackTokenCreate]]):
    """Create one piece of feedback, or a list, answered in kind."""


@router.post(
    "/feedback/tokens",
    **operation(body=FeedbackTokensCreate, gives=FeedbackToken | list[FeedbackToken], errors=(*_REFUSED, 422)),
)
async def create_tokens(request: Request, caller: Writer) -> Response:
    """Make addresses by which somebody without a key gives feedback on a run."""
    wanted = (await read_json(request, FeedbackTokensCreate)).root
    tokens = traces(request).feedback_tokens
    if isinstance(wanted, list):
        return json_answer(await tokens.create(caller, wanted))
    return json_answer((await tokens.create(caller, [wanted]))[0])


@router.get("/feedback/tokens", **operation(gives=list[FeedbackToken], errors=(*_REFUSED, 422)))
async def list_tokens(request: Request, search: Annotated[FeedbackTokenSearch, Query()], caller: Writer) -> Response:
    """List tokens. They let others give feedback, so this asks for the same scope."""
    return json_answer(await traces(request).feedback_tokens.list(caller, search))


@router.get("/feedback/tokens/{token}", **operation(errors=(404, 422)))
async def redeem_token_by_link(request: Request, token: UUID, given: Annotated[FeedbackByLink, Query()]) -> Response:
    """Give feedback by following an address that `POST /feedback/tokens` has made."""
    await traces(request).feedback_tokens.redeem(token, FeedbackByToken(**given.model_dump()))
    return json_answer(None)


@router.post("/feedback/tokens/{token}", **operation(body=FeedbackByToken, errors=(404, 422)))
async def redeem_token(request: Request, token: UUID) -> Response:
    """Give feedback by an address that `POST /feedback/tokens` has made. The address is the permission."""
    given = await read_json(request, FeedbackByToken)
    await traces(request).feedback_tokens.redeem(token, given)
    return json_answer(None)


# --- formulas: before `/feedback/{feedback_id}` too ---------------------------------------------------------------------


@router.post("/feedback/formulas", **operation(body=FormulaWrite, gives=Formula, errors=(*_REFUSED, 409, 422)))
async def create_formula(request: Request, caller: Writer) -> Response:
    """Define a feedback key that is computed from others."""
    new = await read_json(request, FormulaWrite)
    return json_answer(await traces(request).feedback_keys.write_formula(caller, new))


@router.get("/feedback/formulas", **operation(gives=list[Formula], errors=(*_REFUSED, 422)))
async def list_formulas(request: Request, search: Annotated[FormulaSearch, Query()], caller: Reader) -> Response:
    """List the formulas of feedback keys."""
    return json_answer(await traces(request).feedback_keys.list_formulas(caller, search))


@router.get("/feedback/formulas/{formula_id}", **operation(gives=Formula, errors=(*_REFUSED, 404, 422)))
async def get_formula(request: Request, formula_id: UUID, caller: Reader) -> Response:
    """Return the formula of a feedback key."""
    return json_answer(await traces(request).feedback_keys.get_formula(caller, formula_id))


@router.put(
    "/feedback/formulas/{formula_id}", **operation(body=FormulaWrite, gives=Formula, errors=(*_REFUSED, 404, 409, 422))
)
async def put_formula(request: Request, formula_id: UUID, caller: Writer) -> Response:
    """Replace the formula of a feedback key."""
    new = await read_json(request, FormulaWrite)
    return json_answer(await traces(request).feedback_keys.write_formula(caller, new, formula_id))


@router.delete("/feedback/formulas/{formula_id}", **operation(errors=(*_REFUSED, 404, 422)))
async def delete_formula(request: Request, formula_id: UUID, caller: Writer) -> Response:
    """Delete the formula of a feedback key."""
    await traces(request).feedback_keys.delete_formula(caller, formula_id)
    return json_answer({"message": "Feedback formula deleted."})


# --- feedback ----------------------------------------------------------------------------------------------------------


# `eager` has no effect, since creating feedback never waits for the run.
@router.post("/feedback", **operation(body=FeedbackCreate, gives=FeedbackRow, errors=(*_REFUSED, 404, 422)))
@router.post("/feedback/eager", **operation(body=FeedbackCreate, gives=FeedbackRow, errors=(*_REFUSED, 404, 422)))
async def create_feedback(request: Request, caller: Caller = needs(Scope.FEEDBACK_WRITE, audited=False)) -> Response:
    """Store feedback on a run, a trace or a project."""
    new = await read_json(request, FeedbackCreate)
    return json_answer(await traces(request).feedback.create(caller, new))


@router.get("/feedback", **operation(gives=list[FeedbackRow], errors=(*_REFUSED, 422)))
async def list_feedback(request: Request, search: Annotated[FeedbackSearch, Query()], caller: Reader) -> Response:
    """List feedback, narrowed by run, key, source and more."""
    found = await traces(request).feedback.list(caller, search)
    return page_answer(found, search.limit, search.offset)


@router.get("/feedback/{feedback_id}", **operation(gives=FeedbackRow, errors=(*_REFUSED, 404, 422)))
async def get_feedback(request: Request, feedback_id: UUID, caller: Reader) -> Response:
    """Return a feedback."""
    return json_answer(await traces(request).feedback.get(caller, feedback_id))


@router.patch(
    "/feedback/{feedback_id}", **operation(body=FeedbackPatch, gives=FeedbackRow, errors=(*_REFUSED, 404, 422))
)
async def patch_feedback(request: Request, feedback_id: UUID, caller: Writer) -> Response:
    """Change fields of a feedback."""
    patch = await read_json(request, FeedbackPatch)
    return json_answer(await traces(request).feedback.update(caller, feedback_id, patch))


@router.delete("/feedback/{feedback_id}", **operation(errors=(*_REFUSED, 404, 422)))
async def delete_feedback(request: Request, feedback_id: UUID, caller: Writer) -> Response:
    """Delete a feedback."""
    await traces(request).feedback.delete(caller, feedback_id)
    return json_answer({"message": "Feedback deleted."})


# --- configurations of keys ---------------------------------------------------------------------------------------------


@router.get("/feedback-configs", **operation(gives=list[FeedbackConfigRow], errors=(*_REFUSED, 422)))
async def list_feedback_configs(
    request: Request, search: Annotated[FeedbackConfigSearch, Query()], caller: Reader
) -> Response:
    """List the configurations of feedback keys: how their values are to be read."""
    return json_answer(await traces(request).feedback_keys.list_configs(caller, search))


@router.post(
    "/feedback-configs",
    **operation(body=FeedbackConfigCreate, gives=FeedbackConfigRow, errors=(400, *_REFUSED, 422)),
)
async def create_feedback_config(request: Request, caller: Writer) -> Response:
    """Make the configuration of a feedback key: how its values are to be read."""
    new = await read_json(request, FeedbackConfigCreate)
    return json_answer(await traces(request).feedback_keys.create_config(caller, new))


@router.patch(
    "/feedback-configs", **operation(body=FeedbackConfigPatch, gives=FeedbackConfigRow, errors=(*_REFUSED, 404, 422))
)
async def patch_feedback_config(request: Request, caller: Writer) -> Response:
    """Change the configuration of a feedback key."""
    patch = await read_json(request, FeedbackConfigPatch)
    return json_answer(await traces(request).feedback_keys.update_config(caller, patch))


@router.delete("/feedback-configs", **operation(errors=(*_REFUSED, 404, 422), status=204))
async def delete_feedback_config(request: Request, feedback_key: str, caller: Writer) -> Response:
    """Delete the configuration of a feedback key. The feedback itself stays."""
    await traces(request).feedback_keys.delete_config(caller, feedback_key)
    return empty_answer()
