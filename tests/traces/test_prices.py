"""The model price map: the workspace's own prices before the shipped ones, for runs that arrive after them."""

import re
from decimal import Decimal
from uuid import uuid4

import pytest

from moorage.kernel.access import Scope
from moorage.traces import prices as prices_module
from moorage.traces.prices import Prices, choose
from moorage.traces.store.prices import PriceStore
from moorage.traces.usage import Model
from tests.accounts.houses import make_house
from tests.traces.ingest_rooms import NOW, make_run, make_sender

pytest_plugins = ("tests.accounts.fixtures", "tests.traces.fixtures")

NEW = {"name": "mine", "match_pattern": "^my-model$", "prompt_cost": 0.000002, "completion_cost": "0.000003"}
MAP = "/api/v1/model-price-map"


@pytest.fixture
async def sender(platform_postgres, clickhouse):
    async with make_sender(platform_postgres, clickhouse) as made:
        yield made


def model(name, provider=None, key="ls_model_name"):
    return Model(provider, ((key, name),))


async def price_of(sender, asked, start_us=0):
    found = await sender.room.prices.find(sender.workspace_id, [asked])
    return choose(found[asked], start_us)


async def cost_of(sender, name):
    usage = {"input_tokens": 1_000_000, "output_tokens": 0}
    run = make_run(run_type="llm", extra={"metadata": {"ls_model_name": name, "usage_metadata": usage}})
    await sender.post(run)
    return (await sender.read(run["id"]))["prompt_cost"]


async def test_a_price_is_created_shown_changed_and_deleted(sender):
    created = (await sender.http.post(MAP, json={**NEW, "prompt_cost_details": {"cache_read": "0.0000001"}})).json()
    assert created == {
        "id": created["id"],
        "tenant_id": str(sender.workspace_id),
        "name": "mine",
        "start_time": None,
        "match_path": ["model", "model_name", "model_id", "model_path", "endpoint_name"],
        "match_pattern": "^my-model$",
        "provider": None,
        "prompt_cost": "0.000002",
        "completion_cost": "0.000003",
        "prompt_cost_details": {"cache_read": "0.0000001"},
        "completion_cost_details": None,
    }
    assert (await sender.http.get(MAP)).json()[0] == created
    changed = await sender.http.put(f"{MAP}/{created['id']}", json={**NEW, "prompt_cost": 1})
    assert (changed.status_code, changed.json()["prompt_cost"]) == (200, "1")
    assert (await sender.http.delete(f"{MAP}/{created['id']}")).status_code == 200
    assert (await sender.http.delete(f"{MAP}/{created['id']}")).status_code == 404
    assert all(price["tenant_id"] is None for price in (await sender.http.get(MAP)).json())


async def test_an_own_price_wins_over_the_shipped_one_for_new_runs_only(sender):
    usage = {"input_tokens": 1_000_000, "output_tokens": 0}
    before = make_run(run_type="llm", extra={"metadata": {"ls_model_name": "gpt-4o", "usage_metadata": usage}})
    await sender.post(before)
    await sender.http.post(MAP, json={**NEW, "match_pattern": "^gpt-4o$", "prompt_cost": "0.000001"})
    assert await cost_of(sender, "gpt-4o") == Decimal(1)
    assert (await sender.read(before["id"]))["prompt_cost"] == Decimal("2.5")


async def test_a_change_is_seen_at_once_in_its_process_and_soon_in_others(sender, monkeypatch):
    monkeypatch.setattr(prices_module, "PRICES_KEPT_S", 0)
    other = Prices(store=PriceStore(sender.room.postgres))
    assert (await other.find(sender.workspace_id, [model("my-model")]))[model("my-model")] == ()
    assert await cost_of(sender, "my-model") is None
    await sender.http.post(MAP, json=NEW)
    assert await cost_of(sender, "my-model") == Decimal(2)
    assert (await other.find(sender.workspace_id, [model("my-model")]))[model("my-model")]


async def test_a_price_applies_from_its_start_on(sender):
    for cost, start in ((1, None), (2, "2026-06-15T12:00:00Z"), (3, "2030-01-01T00:00:00Z")):
        await sender.http.post(MAP, json={**NEW, "prompt_cost": cost, "start_time": start})
    noon_us = int(NOW.timestamp() * 1e6)
    assert (await price_of(sender, model("my-model"), noon_us)).prompt_cost == 2
    assert (await price_of(sender, model("my-model"), noon_us - 1)).prompt_cost == 1


async def test_a_price_may_be_of_one_provider_and_of_one_place_of_the_name(sender):
    await sender.http.post(MAP, json={**NEW, "provider": "azure", "match_path": ["model"]})
    assert await price_of(sender, model("my-model", "azure"))
    assert await price_of(sender, model("my-model", "azure", key="model"))
    assert await price_of(sender, model("my-model", "azure", key="model_id")) is None
    assert await price_of(sender, model("my-model", "openai")) is None
    assert await price_of(sender, model("my-model")) is None


async def test_prices_of_a_workspace_are_its_own(sender, platform_postgres, clickhouse):
    created = (await sender.http.post(MAP, json=NEW)).json()
    async with make_sender(platform_postgres, clickhouse) as other:
        assert all(price["tenant_id"] is None for price in (await other.http.get(MAP)).json())
        assert (await other.http.put(f"{MAP}/{created['id']}", json=NEW)).status_code == 404
        assert (await other.http.delete(f"{MAP}/{created['id']}")).status_code == 404
        assert await price_of(other, model("my-model")) is None


async def test_a_shipped_price_stays_as_it_is(sender):
    shipped = (await sender.http.get(MAP)).json()[-1]
    for answer in (
        await sender.http.put(f"{MAP}/{shipped['id']}", json=NEW),
        await sender.http.delete(f"{MAP}/{shipped['id']}"),
    ):
        assert answer.status_code == 400
        assert "create one of your own" in answer.json()["detail"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"match_pattern": "("},
        {"match_pattern": r"(a)\1"},
        {"match_pattern": "a" * 501},
        {"match_pattern": ""},
        {"match_pattern": "a\0"},
        {"match_path": ["prompt"]},
        {"prompt_cost": -1},
        {"prompt_cost": "NaN"},
        {"prompt_cost": "much"},
        {"prompt_cost": None},
        {"prompt_cost_details": {"cache_read": "x"}},
        {"name": ""},
        {"start_time": "soon"},
    ],
)
async def test_a_wrong_price_is_refused(sender, wrong):
    answer = await sender.http.post(MAP, json={**NEW, **wrong})
    assert answer.status_code == 422
    assert all(set(item) == {"loc", "msg", "type"} for item in answer.json()["detail"])


async def test_only_a_key_that_manages_prices_may_change_them(platform_postgres, sender):
    house = make_house(platform_postgres)
    sender.room.serve(house)
    workspace = await house.make_workspace()
    async with house.client(await house.make_key(workspace, Scope.RUNS_READ, Scope.RUNS_WRITE)) as http:
        assert (await http.get(MAP)).status_code == 200
        assert (await http.post(MAP, json=NEW)).status_code == 403
        assert (await http.put(f"{MAP}/{uuid4()}", json=NEW)).status_code == 403
        assert (await http.delete(f"{MAP}/{uuid4()}")).status_code == 403


async def test_a_pattern_that_would_take_for_ever_elsewhere_does_not_here(sender):
    await sender.http.post(MAP, json={**NEW, "match_pattern": "^(a+)+$"})
    assert await price_of(sender, model("a" * 150 + "b")) is None


# --- the shipped table ---

SHIPPED = {
    "gpt-4o": "gpt-4o",
    "gpt-4o-2024-08-06": "gpt-4o",
    "gpt-4o-2024-05-13": "gpt-4o-2024-05-13",
    "openai/gpt-4o-mini": "gpt-4o-mini",
    "gpt-5-mini": "gpt-5-mini",
    "gpt-5-chat-latest": "gpt-5",
    "claude-sonnet-4": "claude-sonnet-4",
    "claude-sonnet-4-20250514": "claude-sonnet-4",
    "claude-sonnet-4-5-20250929": "claude-sonnet-4-5",
    "claude-sonnet-4@20250514": "claude-sonnet-4",
    "anthropic.claude-3-5-sonnet-20240620-v1:0": "claude-3-5-sonnet",
    "claude-3-5-sonnet-latest": "claude-3-5-sonnet",
    "models/gemini-2.5-flash": "gemini-2.5-flash",
    "gemini-2.5-flash-lite": "gemini-2.5-flash-lite",
    "gpt-4o-mini-tts": None,
    "llama-3.3-70b": None,
}


@pytest.mark.parametrize(("name", "entry"), SHIPPED.items())
def test_the_shipped_table_knows(name, entry):
    found = [shown["name"] for shown, pattern, _ in prices_module._shipped() if pattern.search(name)]
    assert found[:1] == ([entry] if entry else [])


def test_the_shipped_table_is_in_order():
    shipped = prices_module._shipped()
    assert len({shown["name"] for shown, _, _ in shipped}) == len(shipped)
    for shown, _, price in shipped:
        assert re.fullmatch(r"\d+(\.\d+)?", shown["prompt_cost"]), shown["name"]
        assert price.prompt_cost > 0
        # Cached tokens never cost more.
        assert price.prompt_cost_details.get("cache_read", 0) < price.prompt_cost
