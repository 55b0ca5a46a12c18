"""Costs of runs as they are ingested."""

from decimal import Decimal

import orjson

from tests.traces.ingest_rooms import (
    make_run,
    update_of,
)

pytest_plugins = "tests.traces.ingest_clients"


MODEL = {"metadata": {"ls_provider": "openai", "ls_model_name": "gpt-4o-mini"}}


async def test_costs_follow_from_tokens_and_the_shipped_prices(sender):
    usage = {"input_tokens": 1_000_000, "output_tokens": 1000, "input_token_details": {"cache_read": 500_000}}
    run = make_run(run_type="llm", extra=MODEL, outputs={"usage_metadata": usage})
    await sender.post(run)
    stored = await sender.read(run["id"])
    assert (stored["prompt_tokens"], stored["completion_tokens"], stored["total_tokens"]) == (
        1_000_000,
        1000,
        1_001_000,
    )
    assert (stored["prompt_cost"], stored["completion_cost"]) == (Decimal("0.1125"), Decimal("0.0006"))
    assert stored["total_cost"] == Decimal("0.1131")
    assert orjson.loads(stored["prompt_token_details"]) == {"cache_read": 500_000}
    assert orjson.loads(stored["prompt_cost_details"]) == {"cache_read": "0.0375"}


async def test_given_costs_win_and_are_exact(sender):
    metadata = {**MODEL["metadata"], "usage_metadata": {"input_tokens": 10, "output_tokens": 1, "total_cost": 1e-6}}
    run = make_run(run_type="llm", extra={"metadata": metadata})
    await sender.post(run)
    stored = await sender.read(run["id"])
    assert (stored["total_cost"], stored["prompt_cost"], stored["prompt_tokens"]) == (Decimal("0.000001"), None, 10)


async def test_an_update_with_tokens_alone_takes_the_model_from_its_run(sender):
    """People who call the API without an SDK send such updates."""
    runs = [make_run(run_type=kind, extra=MODEL) for kind in ("llm", "chain")]
    await sender.post(*runs)
    for run in runs:
        outputs = {"usage": {"prompt_tokens": 1_000_000, "completion_tokens": 0}}
        assert (await sender.http.patch(f"/runs/{run['id']}", json={"outputs": outputs})).status_code == 202
    model_call, chain = [await sender.read(run["id"]) for run in runs]
    assert (model_call["prompt_cost"], model_call["total_tokens"]) == (Decimal("0.15"), 1_000_000)
    assert (chain["prompt_cost"], chain["total_tokens"]) == (None, None)
    both = make_run(run_type="llm", extra=MODEL)
    outputs = {"usage": {"prompt_tokens": 2_000_000, "completion_tokens": 0}}
    await sender.multipart(
        (f"post.{both['id']}", both), (f"patch.{both['id']}", update_of(both)), (f"patch.{both['id']}.outputs", outputs)
    )
    assert (await sender.read(both["id"]))["prompt_cost"] == Decimal("0.3")
