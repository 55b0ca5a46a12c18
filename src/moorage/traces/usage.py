"""Tokens and costs of one trace run, from any supported form of usage data. Pure functions.

For runs of any type, usage is read from `extra.metadata.usage_metadata`, else from `outputs.usage_metadata`. For model
calls it is also read from the places of providers and frameworks (`_provider_usages`). Other runs are excluded from
this: a chain often returns its model's answer, and the tokens would be counted twice. Costs sent by the client win;
else `priced` computes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple
from uuid import UUID

from moorage.traces.records.prices import MODEL_KEYS

# The store keeps twelve decimal places. Calculations are exact only up to 28 digits in all.
_COST_STEP = Decimal("1e-12")
_COST_BELOW = Decimal("1e15")
_TOKENS_MAX = 2**53  # more is a client's error, and JavaScript cannot read such a number

MODEL_CALLS = frozenset({"llm", "embedding"})

# The providers' names for the first three columns of usage data, in order of preference.
_PROMPT = ("input_tokens", "prompt_tokens", "prompt_token_count", "inputTokens", "promptTokens", "promptTokenCount")
_COMPLETION = (
    "output_tokens",
    "completion_tokens",
    "candidates_token_count",
    "outputTokens",
    "completionTokens",
    "candidatesTokenCount",
)
_TOTAL = ("total_tokens", "total_token_count", "totalTokens", "totalTokenCount")

_Paths = Mapping[tuple[str, ...], str]
# Details that the count of prompt tokens includes, by their path.
_PROMPT_DETAILS: _Paths = {
    ("prompt_tokens_details", "cached_tokens"): "cache_read",
    ("prompt_tokens_details", "audio_tokens"): "audio",
    ("input_tokens_details", "cached_tokens"): "cache_read",
    ("input_tokens_details", "audio_tokens"): "audio",
    ("prompt_cache_hit_tokens",): "cache_read",  # DeepSeek
    ("cached_content_token_count",): "cache_read",  # Gemini
    ("cachedContentTokenCount",): "cache_read",
}
# Details that the count does not include (Anthropic, Bedrock), so they are added to it.
_PROMPT_EXTRAS: _Paths = {
    ("cache_read_input_tokens",): "cache_read",
    ("cache_creation", "ephemeral_5m_input_tokens"): "ephemeral_5m_input_tokens",
    ("cache_creation", "ephemeral_1h_input_tokens"): "ephemeral_1h_input_tokens",
    ("cacheReadInputTokens",): "cache_read",
    ("cacheWriteInputTokens",): "cache_creation",
}
_COMPLETION_DETAILS: _Paths = {
    ("completion_tokens_details", "reasoning_tokens"): "reasoning",
    ("completion_tokens_details", "audio_tokens"): "audio",
    ("output_tokens_details", "reasoning_tokens"): "reasoning",
    ("output_tokens_details", "audio_tokens"): "audio",
}
_COMPLETION_EXTRAS: _Paths = {("thoughts_token_count",): "reasoning", ("thoughtsTokenCount",): "reasoning"}  # Gemini


class Usage(NamedTuple):
    """Tokens are counts, costs US dollars. None: not known."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_token_details: Mapping[str, int] | None = None
    completion_token_details: Mapping[str, int] | None = None
    prompt_cost: Decimal | None = None
    completion_cost: Decimal | None = None
    total_cost: Decimal | None = None
    prompt_cost_details: Mapping[str, Decimal] | None = None
    completion_cost_details: Mapping[str, Decimal] | None = None

    @property
    def has_cost(self) -> bool:
        return self.total_cost is not None or self.prompt_cost is not None or self.completion_cost is not None


class Price(NamedTuple):
    """US dollars per token. Runs that started before `start_us` (microseconds since 1970) have another price."""

    id: UUID | None
    prompt_cost: Decimal
    completion_cost: Decimal
    prompt_cost_details: Mapping[str, Decimal]
    completion_cost_details: Mapping[str, Decimal]
    start_us: int | None = None


class Model(NamedTuple):
    """Model of a run: its provider, and its names with the key of each, the best name first."""

    provider: str | None
    names: tuple[tuple[str, str], ...]


LS_MODEL_NAME = "ls_model_name"
_NAME_CHARS_MAX = 200


def find_model(metadata: Any, invocation_params: Any) -> Model | None:
    """The model that a run names, if it names one."""
    names = []
    provider = None
    if isinstance(metadata, dict):
        provider = _name(metadata.get("ls_provider"))
        if name := _name(metadata.get(LS_MODEL_NAME)):
            names.append((LS_MODEL_NAME, name))
    if isinstance(invocation_params, dict):
        names += [(key, name) for key in MODEL_KEYS if (name := _name(invocation_params.get(key)))]
    return Model(provider, tuple(names)) if names else None


def _name(value: Any) -> str | None:
    return value[:_NAME_CHARS_MAX].replace("\0", "") if isinstance(value, str) and value else None


def read_usage(metadata: Any, outputs: Any, run_type: str | None) -> Usage | None:
    """Read the usage of a run, or None when it has none. `metadata` is `extra.metadata`; both are decoded JSON."""
    if isinstance(metadata, dict) and (usage := _read(metadata.get("usage_metadata"))):
        return usage
    if not isinstance(outputs, dict):
        return None
    if usage := _read(outputs.get("usage_metadata")):
        return usage
    if run_type not in MODEL_CALLS:
        return None
    return next(filter(None, map(_read, _provider_usages(outputs))), None)


def _provider_usages(outputs: dict[str, Any]) -> Iterator[Any]:
    """Yield the places of usage in the outputs of a model call, the most exact first."""
    generations = outputs.get("generations")
    if isinstance(generations, list):
        yield _summed([_of_generation(first) for first in map(_first, generations)])
    llm_output = outputs.get("llm_output")
    if isinstance(llm_output, dict):
        yield from (llm_output.get(key) for key in ("token_usage", "tokenUsage", "usage", "estimatedTokenUsage"))
    yield from (outputs.get(key) for key in ("usage", "usageMetadata", "token_usage"))
    for key in ("message", "output", "response"):
        yield _of_message(outputs.get(key))
    messages = outputs.get("messages")
    if isinstance(messages, list) and messages:
        yield _of_message(messages[-1])


def _first(generation: Any) -> Any:
    """Take the first of several answers to one prompt: each carries the usage of all of them."""
    return generation[0] if isinstance(generation, list) and generation else generation


def _of_generation(generation: Any) -> Any:
    if not isinstance(generation, dict):
        return None
    return _of_message(generation.get("message")) or _of_message(generation.get("generation_info"))


def _of_message(message: Any) -> Any:
    """Usage of a LangChain message, serialised in either of its forms, or of an answer that was wrapped."""
    if not isinstance(message, dict):
        return None
    if isinstance(message.get("kwargs"), dict):
        message = message["kwargs"]
    found = message.get("usage_metadata") or message.get("usage") or message.get("token_usage")
    if found or not isinstance(message.get("response_metadata"), dict):
        return found
    return _of_message(message["response_metadata"])


def _summed(usages: list[Any]) -> Any:
    """Add up the usages of several prompts that one run asked at once."""
    usages = [usage for usage in usages if isinstance(usage, dict)]
    if len(usages) < 2:
        return usages[0] if usages else None
    return _sum_of([usage for usage in map(_read, usages) if usage])


def _sum_of(usages: list[Usage]) -> dict[str, Any]:
    def total(numbers: Iterator[int | None]) -> int | None:
        known = [number for number in numbers if number is not None]
        return sum(known) if known else None

    def details(each: Iterator[Mapping[str, int] | None]) -> dict[str, int]:
        summed: dict[str, int] = {}
        for counts in each:
            for kind, count in (counts or {}).items():
                summed[kind] = summed.get(kind, 0) + count
        return summed

    return {
        "input_tokens": total(usage.prompt_tokens for usage in usages),
        "output_tokens": total(usage.completion_tokens for usage in usages),
        "total_tokens": total(usage.total_tokens for usage in usages),
        "input_token_details": details(usage.prompt_token_details for usage in usages),
        "output_token_details": details(usage.completion_token_details for usage in usages),
    }


def _read(given: Any) -> Usage | None:
    """Read usage data in any provider's format; None when it contains no usage."""
    if not isinstance(given, dict) or not given:
        return None
    prompt, prompt_details = _count(given, _PROMPT, "input_token_details", _PROMPT_DETAILS, _PROMPT_EXTRAS)
    if "cache_creation" not in given and (created := _tokens(given.get("cache_creation_input_tokens"))):
        prompt, prompt_details = (prompt or 0) + created, {**prompt_details, "cache_creation": created}
    completion, completion_details = _count(
        given, _COMPLETION, "output_token_details", _COMPLETION_DETAILS, _COMPLETION_EXTRAS
    )
    total = _first_count(given, _TOTAL)
    counted = None if prompt is None and completion is None else (prompt or 0) + (completion or 0)
    usage = Usage(
        prompt,
        completion,
        counted if total is None or (counted or 0) > total else total,
        prompt_details or None,
        completion_details or None,
        *_given_costs(given),
    )
    return None if usage.total_tokens is None and not usage.has_cost else usage


def _count(
    given: dict[str, Any],
    names: tuple[str, ...],
    details_name: str,
    parts: _Paths,
    extras: _Paths,
) -> tuple[int | None, dict[str, int]]:
    """Read the tokens of one direction, in all and by kind."""
    count = _first_count(given, names)
    if isinstance(details := given.get(details_name), dict):
        # With these names the count always includes the details.
        return count, {str(kind): tokens for kind, value in details.items() if (tokens := _tokens(value)) is not None}
    found = {kind: tokens for path, kind in parts.items() if (tokens := _tokens(_at(given, path)))}
    for path, kind in extras.items():
        if tokens := _tokens(_at(given, path)):
            found[kind] = tokens
            count = (count or 0) + tokens
    return count, found


def _first_count(given: dict[str, Any], names: tuple[str, ...]) -> int | None:
    return next((tokens for name in names if (tokens := _tokens(given.get(name))) is not None), None)


def _at(given: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = given
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _tokens(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _TOKENS_MAX else None


def _given_costs(
    given: dict[str, Any],
) -> tuple[Decimal | None, Decimal | None, Decimal | None, dict[str, Decimal] | None, dict[str, Decimal] | None]:
    """Read costs of prompt, completion and both, and by kind of token. Missing sums are computed from their parts."""
    prompt_details, completion_details = (_costs(given.get(f"{way}_cost_details")) for way in ("input", "output"))
    prompt = _cost(given.get("input_cost"))
    completion = _cost(given.get("output_cost"))
    if prompt is None and prompt_details:
        prompt = sum(prompt_details.values(), Decimal(0))
    if completion is None and completion_details:
        completion = sum(completion_details.values(), Decimal(0))
    total = _cost(given.get("total_cost"))
    if total is None and (prompt is not None or completion is not None):
        total = (prompt or Decimal(0)) + (completion or Decimal(0))
    return prompt, completion, total, prompt_details or None, completion_details or None


def _costs(value: Any) -> dict[str, Decimal]:
    if not isinstance(value, dict):
        return {}
    return {str(kind): cost for kind, given in value.items() if (cost := _cost(given)) is not None}


def _cost(value: Any) -> Decimal | None:
    """Read a number or its text exactly: 1e-6 is a millionth, not the nearest binary fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        cost = Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        return None
    return stored_cost(cost)


def stored_cost(cost: Decimal) -> Decimal | None:
    """Round a cost to what the store can hold; None when it cannot hold it at all."""
    if not cost.is_finite() or abs(cost) >= _COST_BELOW:
        return None
    return cost.quantize(_COST_STEP)


def priced(usage: Usage, price: Price) -> Usage:
    """Add the costs of the tokens, unless costs were given.

    Kinds of tokens with a separate price are charged first, the remaining tokens at the base price.
    """
    if usage.has_cost or (usage.prompt_tokens is None and usage.completion_tokens is None):
        return usage
    prompt, prompt_details = _charge(
        usage.prompt_tokens, usage.prompt_token_details, price.prompt_cost, price.prompt_cost_details
    )
    completion, completion_details = _charge(
        usage.completion_tokens, usage.completion_token_details, price.completion_cost, price.completion_cost_details
    )
    return usage._replace(
        prompt_cost=prompt,
        completion_cost=completion,
        total_cost=stored_cost((prompt or Decimal(0)) + (completion or Decimal(0))),
        prompt_cost_details=prompt_details or None,
        completion_cost_details=completion_details or None,
    )


def _charge(
    tokens: int | None, details: Mapping[str, int] | None, base: Decimal, prices: Mapping[str, Decimal]
) -> tuple[Decimal | None, dict[str, Decimal]]:
    if tokens is None:
        return None, {}
    rest, cost, by_kind = tokens, Decimal(0), {}
    for kind, price in prices.items() if details else ():
        count = min((details or {}).get(kind, 0), rest)
        if count:
            rest -= count
            cost += (charged := count * price)
            by_kind[kind] = stored_cost(charged) or Decimal(0)
    return stored_cost(cost + rest * base), by_kind
