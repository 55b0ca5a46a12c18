"""Tokens and costs, from every form in which clients send them."""

from decimal import Decimal

import pytest

from moorage.traces.usage import Model, Price, Usage, find_model, priced, read_usage

TOKENS = {"input_tokens": 27, "output_tokens": 13, "total_tokens": 40}
MESSAGE = {"lc": 1, "type": "constructor", "kwargs": {"content": "hi", "usage_metadata": TOKENS}}

FORMS = {
    "top level of the outputs": {"usage_metadata": TOKENS},
    "a LangChain model": {"generations": [[{"text": "hi", "message": MESSAGE}]], "llm_output": None},
    "a LangChain model, plain": {"generations": [{"message": {"usage_metadata": TOKENS}}]},
    "response metadata": {
        "generations": [
            [
                {
                    "message": {
                        "kwargs": {"response_metadata": {"token_usage": {"prompt_tokens": 27, "completion_tokens": 13}}}
                    }
                }
            ]
        ]
    },
    "generation info": {"generations": [[{"generation_info": {"usage_metadata": TOKENS}}]]},
    "llm_output": {"llm_output": {"token_usage": {"prompt_tokens": 27, "completion_tokens": 13, "total_tokens": 40}}},
    "llm_output of JavaScript": {"llm_output": {"tokenUsage": {"promptTokens": 27, "completionTokens": 13}}},
    "OpenAI chat": {"choices": [], "usage": {"prompt_tokens": 27, "completion_tokens": 13, "total_tokens": 40}},
    "OpenAI responses": {"output": [], "usage": TOKENS},
    "Anthropic": {"content": [], "usage": {"input_tokens": 27, "output_tokens": 13}},
    "Gemini": {"usage_metadata": {"prompt_token_count": 27, "candidates_token_count": 13, "total_token_count": 40}},
    "Gemini of JavaScript": {"usageMetadata": {"promptTokenCount": 27, "candidatesTokenCount": 13}},
    "Bedrock": {"usage": {"inputTokens": 27, "outputTokens": 13, "totalTokens": 40}},
    "a message": {"message": {"role": "assistant", "usage_metadata": TOKENS}},
    "the output": {"output": {"usage": {"prompt_tokens": 27, "completion_tokens": 13}}},
    "the last message": {"messages": [{"usage_metadata": {"input_tokens": 1}}, MESSAGE]},
    "several prompts": {
        "generations": [
            [{"message": {"usage_metadata": {"input_tokens": 20, "output_tokens": 3, "total_tokens": 23}}}] * 2,
            [{"message": {"usage_metadata": {"input_tokens": 7, "output_tokens": 10, "total_tokens": 17}}}],
        ]
    },
    "floats": {"usage": {"prompt_tokens": 27.0, "completion_tokens": 13.0}},
}


@pytest.mark.parametrize("outputs", FORMS.values(), ids=FORMS)
def test_tokens_are_read_from(outputs):
    usage = read_usage({}, outputs, "llm")
    assert usage[:3] == (27, 13, 40)


def test_metadata_wins_over_outputs():
    usage = read_usage({"usage_metadata": TOKENS}, {"usage_metadata": {"input_tokens": 1}}, "llm")
    assert usage.prompt_tokens == 27


@pytest.mark.parametrize("run_type", ["chain", "tool", None])
def test_only_model_calls_are_searched_for_provider_formats(run_type):
    assert read_usage({}, FORMS["a LangChain model"], run_type) is None
    assert read_usage({}, FORMS["OpenAI chat"], run_type) is None
    assert read_usage({}, FORMS["top level of the outputs"], run_type)[:3] == (27, 13, 40)


@pytest.mark.parametrize(
    ("given", "prompt", "completion", "prompt_details", "completion_details"),
    [
        (
            {
                **TOKENS,
                "input_token_details": {"cache_read": 5, "audio": None},
                "output_token_details": {"reasoning": 2},
            },
            27,
            13,
            {"cache_read": 5},
            {"reasoning": 2},
        ),
        (
            {
                "prompt_tokens": 27,
                "completion_tokens": 13,
                "prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            27,
            13,
            {"cache_read": 5},
            {"reasoning": 2},
        ),
        # Anthropic counts cached tokens separately from the input.
        (
            {"input_tokens": 20, "output_tokens": 13, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2},
            27,
            13,
            {"cache_read": 5, "cache_creation": 2},
            None,
        ),
        (
            {
                "input_tokens": 20,
                "output_tokens": 13,
                "cache_creation_input_tokens": 7,
                "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4},
            },
            27,
            13,
            {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4},
            None,
        ),
        ({"inputTokens": 20, "outputTokens": 13, "cacheReadInputTokens": 7}, 27, 13, {"cache_read": 7}, None),
        (
            {"promptTokenCount": 27, "candidatesTokenCount": 10, "thoughtsTokenCount": 3, "cachedContentTokenCount": 4},
            27,
            13,
            {"cache_read": 4},
            {"reasoning": 3},
        ),
    ],
)
def test_kinds_of_tokens_are_read(given, prompt, completion, prompt_details, completion_details):
    usage = read_usage({}, {"usage": given}, "llm")
    assert usage[:5] == (prompt, completion, prompt + completion, prompt_details, completion_details)


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        [],
        {},
        {"usage": None},
        {"usage": "many"},
        {"usage": {"prompt_tokens": "27"}},
        {"usage": {"prompt_tokens": -1, "completion_tokens": True}},
        {"usage": {"prompt_tokens": 2**60}},
        {"usage": {"prompt_tokens": 1.5}},
        {"generations": [[]]},
        {"generations": [None, [None], [{"message": None}]]},
        {"llm_output": {"token_usage": []}},
        {"messages": [None]},
    ],
)
def test_what_says_nothing_is_passed_over(nonsense):
    assert read_usage({"usage_metadata": []}, nonsense, "llm") is None


# --- costs ---


def test_given_costs_are_exact_and_added_up():
    usage = read_usage({"usage_metadata": {"input_cost": 1.1e-6, "output_cost": "0.000005", **TOKENS}}, None, "llm")
    assert (usage.prompt_cost, usage.completion_cost, usage.total_cost) == (
        Decimal("0.0000011"),
        Decimal("0.000005"),
        Decimal("0.0000061"),
    )


def test_a_tool_may_have_a_total_alone():
    usage = read_usage({"usage_metadata": {"total_cost": 0.0015}}, {}, "tool")
    assert (usage.total_cost, usage.prompt_cost, usage.total_tokens) == (Decimal("0.0015"), None, None)


def test_a_part_of_which_only_kinds_have_costs_is_their_sum():
    usage = read_usage({"usage_metadata": {"input_cost_details": {"cache_read": 2e-7, "text": 1e-6}}}, {}, "llm")
    assert usage.prompt_cost == usage.total_cost == Decimal("0.0000012")
    assert usage.prompt_cost_details == {"cache_read": Decimal("2e-7"), "text": Decimal("1e-6")}


@pytest.mark.parametrize("cost", ["NaN", float("inf"), "much", True, 1e30, None, []])
def test_a_cost_that_is_none_is_passed_over(cost):
    assert read_usage({"usage_metadata": {"total_cost": cost}}, {}, "tool") is None


def price(prompt, completion, prompt_details=None, completion_details=None):
    def each(details):
        return {kind: Decimal(cost) for kind, cost in (details or {}).items()}

    return Price(Decimal(prompt), Decimal(completion), each(prompt_details), each(completion_details))


def test_kinds_with_a_price_are_charged_first_and_the_rest_at_the_base_price():
    usage = Usage(20, 10, 30, {"cache_read": 5, "other": 3}, None)
    found = priced(usage, price("0.000002", "0.000003", {"cache_read": "0.000001"}))
    assert (found.prompt_cost, found.completion_cost, found.total_cost) == (
        Decimal("0.000035"),
        Decimal("0.00003"),
        Decimal("0.000065"),
    )
    assert found.prompt_cost_details == {"cache_read": Decimal("0.000005")}


def test_no_token_is_charged_twice():
    usage = Usage(10, None, 10, {"cache_read_over_200k": 8, "cache_read": 8}, None)
    found = priced(usage, price(1, 1, {"cache_read_over_200k": 3, "cache_read": 2}))
    assert found.total_cost == 8 * 3 + 2 * 2
    assert found.completion_cost is None


def test_the_table_does_not_overrule_a_given_cost():
    usage = Usage(20, 10, 30, total_cost=Decimal(1))
    assert priced(usage, price(1, 1)) is usage


def test_a_millionth_of_a_dollar_stays_one():
    found = priced(Usage(1, 0, 1), price("1e-6", "1e-6"))
    assert str(found.total_cost.normalize()) == "0.000001"


# --- models ---


def test_the_model_is_found_in_metadata_first_and_then_in_the_parameters():
    found = find_model({"ls_provider": "openai", "ls_model_name": "gpt-4o"}, {"model_name": "x", "model": "y"})
    assert found == Model("openai", (("ls_model_name", "gpt-4o"), ("model", "y"), ("model_name", "x")))
    assert find_model({}, {"endpoint_name": "e", "model": None}) == Model(None, (("endpoint_name", "e"),))
    assert find_model({"ls_provider": "openai", "ls_model_name": 3}, None) is None
    assert find_model(None, []) is None
