"""Tokens and costs of one trace run, from any supported form of usage data. Pure functions.

For runs of any type, usage is read from `extra.metadata.usage_metadata`, else from `outputs.usage_metadata`. For model
calls it is also read from the places of providers and frameworks (`_provider_usages`). Other runs are excluded from
this: a chain often returns its model's answer, and the tokens would be counted twice. Costs sent by the client win;
else `priced` computes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any, NamedTuple

from moorage.kernel.encoding import encode
from moorage.traces.records.prices import MODEL_KEYS, plain
from moorage.traces.records.run_rows import NO_USAGE, Row

# The store keeps twelve decimal places. Calculations are exact only up to 28 digits in all.
_COST_STEP = Decimal("1e-12")
_COST_BELOW = Decimal("1e15")
_TOKENS_MAX = 2**53  # more is a client's error, and JavaScript cannot read such a number

MODEL_CALLS = frozenset({"llm", "embedding"})

_Path = tuple[str, ...]


class _Direction(NamedTuple):
    """Names of the tokens of one direction in the forms of all providers. `kinds_…`: details by their path."""

    wire: str  # prefix of `input_token_details`, `input_cost` and the like
    counts: tuple[str, ...]  # in order of preference
    kinds_included: Mapping[_Path, str]  # the count includes these
    kinds_on_top: Mapping[_Path, str]  # the count does not include these, so they are added to it


_PROMPT = _Direction(
    wire="input",
    counts=("input_tokens", "prompt_tokens", "prompt_token_count", "inputTokens", "promptTokens", "promptTokenCount"),
    kinds_included={
        ("prompt_tokens_details", "cached_tokens"): "cache_read",
        ("prompt_tokens_details", "audio_tokens"): "audio",
        ("input_tokens_details", "cached_tokens"): "cache_read",
        ("input_tokens_details", "audio_tokens"): "audio",
        ("prompt_cache_hit_tokens",): "cache_read",  # DeepSeek
        ("cached_content_token_count",): "cache_read",  # Gemini
        ("cachedContentTokenCount",): "cache_read",
    },
    kinds_on_top={  # Anthropic, Bedrock
        ("cache_read_input_tokens",): "cache_read",
        ("cache_creation_input_tokens",): "cache_creation",
        ("cache_creation", "ephemeral_5m_input_tokens"): "ephemeral_5m_input_tokens",
        ("cache_creation", "ephemeral_1h_input_tokens"): "ephemeral_1h_input_tokens",
        ("cacheReadInputTokens",): "cache_read",
        ("cacheWriteInputTokens",): "cache_creation",
    },
)
_COMPLETION = _Direction(
    wire="output",
    counts=(
        "output_tokens",
        "completion_tokens",
        "candidates_token_count",
        "outputTokens",
        "completionTokens",
        "candidatesTokenCount",
    ),
    kinds_included={
        ("completion_tokens_details", "reasoning_tokens"): "reasoning",
        ("completion_tokens_details", "audio_tokens"): "audio",
        ("output_tokens_details", "reasoning_tokens"): "reasoning",
        ("output_tokens_details", "audio_tokens"): "audio",
    },
    kinds_on_top={("thoughts_token_count",): "reasoning", ("thoughtsTokenCount",): "reasoning"},  # Gemini
)
_TOTALS = ("total_tokens", "total_token_count", "totalTokens", "totalTokenCount")
_IN_LLM_OUTPUT = ("token_usage", "tokenUsage", "usage", "estimatedTokenUsage")
_IN_OUTPUTS = ("usage", "usageMetadata", "token_usage")
_IN_MESSAGE = ("usage_metadata", "usage", "token_usage")


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

    def columns(self) -> Row:
        """Values of the columns. Each has one, so that together they replace all usage of earlier writes."""
        return NO_USAGE | {
            name: encode(value, plain) if isinstance(value, dict) else value
            for name, value in self._asdict().items()
            if value is not None
        }


class Price(NamedTuple):
    """US dollars per token. Runs that started before `start_us` (microseconds since 1970) have another price."""

    prompt_cost: Decimal
    completion_cost: Decimal
    prompt_cost_details: Mapping[str, Decimal]
    completion_cost_details: Mapping[str, Decimal]
    start_us: int | None = None


class Model(NamedTuple):
    """Model of a run: its provider, and its names with the key of each, the best name first."""

    provider: str | None
    names: tuple[tuple[str, str], ...]


_NAME_CHARS_MAX = 200


def find_model(metadata: Any, invocation_params: Any) -> Model | None:
    """Find the model that a run names, if it names one."""
    names: list[tuple[str, str]] = []
    for given, keys in ((metadata, ("ls_model_name",)), (invocation_params, MODEL_KEYS)):
        if isinstance(given, dict):
            names += [(key, name) for key in keys if (name := _name(given.get(key)))]
    provider = _name(metadata.get("ls_provider")) if isinstance(metadata, dict) else None
    return Model(provider, tuple(names)) if names else None


def _name(value: Any) -> str | None:
    return value[:_NAME_CHARS_MAX].replace("\0", "") if isinstance(value, str) and value else None


def read_usage(metadata: Any, outputs: Any, run_type: str | None) -> Usage | None:
    """Read the usage of a run, or None when it has none. `metadata` is `extra.metadata`; both are decoded JSON."""
    for given in (metadata, outputs):
        if isinstance(given, dict) and (usage := _read(given.get("usage_metadata"))):
            return usage
    if run_type not in MODEL_CALLS or not isinstance(outputs, dict):
        return None
    return _of_prompts(outputs.get("generations")) or next(filter(None, map(_read, _provider_usages(outputs))), None)


def _provider_usages(outputs: dict[str, Any]) -> Iterator[Any]:
    """Yield the places of usage in the outputs of a model call, the most exact first."""
    yield from (_at(outputs, ("llm_output", key)) for key in _IN_LLM_OUTPUT)
    yield from (outputs.get(key) for key in _IN_OUTPUTS)
    for key in ("message", "output", "response"):
        yield from _of_message(outputs.get(key))
    messages = outputs.get("messages")
    if isinstance(messages, list) and messages:
        yield from _of_message(messages[-1])


def _of_message(message: Any) -> Iterator[Any]:
    """Yield the places of usage in a LangChain message, serialised in either of its forms, or in a wrapped answer."""
    if isinstance(message, dict):
        message = message["kwargs"] if isinstance(message.get("kwargs"), dict) else message
        yield from (message.get(key) for key in _IN_MESSAGE)
        yield from (_at(message, ("response_metadata", key)) for key in _IN_MESSAGE)


def _of_prompts(generations: Any) -> Usage | None:
    """Add up the usages of the prompts that one run asked at once.

    Each of several answers to a prompt carries the usage of all of them, so only the first answer is read.
    """
    usages = []
    for answers in generations if isinstance(generations, list) else ():
        first = answers[0] if isinstance(answers, list) and answers else answers
        places = chain(_of_message(_at(first, ("message",))), _of_message(_at(first, ("generation_info",))))
        if usage := next(filter(None, map(_read, places)), None):
            usages.append(usage)
    summed = Usage(*map(_sum, zip(*usages, strict=True))) if usages else None
    return None if summed is None or (summed.total_tokens or 0) > _TOKENS_MAX else summed


def _sum(values: tuple[Any, ...]) -> Any:
    """Add up numbers, or numbers by kind. None: not known."""
    known = [value for value in values if value is not None]
    if not known or not isinstance(known[0], dict):
        return sum(known) if known else None
    return {kind: sum(value.get(kind, 0) for value in known) for kind in dict.fromkeys(chain(*known))}


def _read(given: Any) -> Usage | None:
    """Read usage data in any provider's format; None when it contains no usage."""
    if not isinstance(given, dict) or not given:
        return None
    prompt, prompt_kinds = _tokens_of(given, _PROMPT)
    completion, completion_kinds = _tokens_of(given, _COMPLETION)
    prompt_cost, prompt_costs = _costs_of(given, _PROMPT)
    completion_cost, completion_costs = _costs_of(given, _COMPLETION)
    total, counted = _first_count(given, _TOTALS), _sum((prompt, completion))
    if total is None or (counted or 0) > total:
        total = counted
    total_cost = _cost(given.get("total_cost"))
    if total_cost is None:
        total_cost = _sum((prompt_cost, completion_cost))
    if total is None and total_cost is None:
        return None
    costs = (prompt_cost, completion_cost, total_cost, prompt_costs or None, completion_costs or None)
    return Usage(prompt, completion, total, prompt_kinds or None, completion_kinds or None, *costs)


def _tokens_of(given: dict[str, Any], direction: _Direction) -> tuple[int | None, dict[str, int]]:
    """Read the tokens of one direction, in all and by kind."""
    count = _first_count(given, direction.counts)
    if isinstance(details := given.get(f"{direction.wire}_token_details"), dict):
        # With these names the count always includes the details.
        return count, {str(kind): tokens for kind, value in details.items() if (tokens := _tokens(value)) is not None}
    included, on_top = (
        {kind: tokens for path, kind in kinds.items() if path[0] in given and (tokens := _tokens(_at(given, path)))}
        for kinds in (direction.kinds_included, direction.kinds_on_top)
    )
    if given.get("cache_creation"):  # the created tokens are known by kind
        on_top.pop("cache_creation", None)
    return (count or 0) + sum(on_top.values()) if on_top else count, included | on_top


def _first_count(given: dict[str, Any], names: tuple[str, ...]) -> int | None:
    return next((tokens for name in names if (tokens := _tokens(given.get(name))) is not None), None)


def _at(value: Any, path: _Path) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _tokens(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _TOKENS_MAX else None


def _costs_of(given: dict[str, Any], direction: _Direction) -> tuple[Decimal | None, dict[str, Decimal]]:
    """Read the costs of one direction, in all and by kind. A missing sum is computed from its kinds."""
    cost, details = _cost(given.get(f"{direction.wire}_cost")), given.get(f"{direction.wire}_cost_details")
    if not isinstance(details, dict):
        return cost, {}
    kinds = {str(kind): known for kind, value in details.items() if (known := _cost(value)) is not None}
    return _sum((*kinds.values(),)) if cost is None else cost, kinds


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
    prompt, prompt_kinds = _charge(
        usage.prompt_tokens, usage.prompt_token_details, price.prompt_cost, price.prompt_cost_details
    )
    completion, completion_kinds = _charge(
        usage.completion_tokens, usage.completion_token_details, price.completion_cost, price.completion_cost_details
    )
    return usage._replace(
        prompt_cost=prompt,
        completion_cost=completion,
        total_cost=stored_cost((prompt or Decimal(0)) + (completion or Decimal(0))),
        prompt_cost_details=prompt_kinds or None,
        completion_cost_details=completion_kinds or None,
    )


def _charge(
    tokens: int | None, kinds: Mapping[str, int] | None, base: Decimal, prices: Mapping[str, Decimal]
) -> tuple[Decimal | None, dict[str, Decimal]]:
    if tokens is None:
        return None, {}
    rest, cost, by_kind = tokens, Decimal(0), {}
    for kind, price in prices.items() if kinds else ():
        if count := min((kinds or {}).get(kind, 0), rest):
            rest -= count
            cost += count * price
            by_kind[kind] = stored_cost(count * price) or Decimal(0)
    return stored_cost(cost + rest * base), by_kind
