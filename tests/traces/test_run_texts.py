from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.traces.records.run_texts import PREVIEW_CHARS, followed_by, messages, payload, preview, thread_previews

USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
SERIALIZED = {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["messages", "role", "type", "content", "kwargs", "lc", "id", "x"]), inner)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ({"messages": [USER]}, {"choices": [{"message": ANSWER}]}, [USER, ANSWER]),
        (
            {"messages": [{"type": "human", "content": "hi"}]},
            {"output": {"type": "ai", "content": "hello"}},
            [USER, ANSWER],
        ),
        ({"messages": [[SERIALIZED | {"kwargs": {"content": "hi", "type": "human"}}]]}, None, [USER]),
        ({"messages": [SERIALIZED | {"kwargs": {"content": "hi"}}]}, None, [USER]),
        (
            {"messages": [USER]},
            {"generations": [[{"text": "hello", "message": {"type": "AIMessageChunk", "content": "hello"}}]]},
            [USER, ANSWER],
        ),
        # A graph returns the whole conversation.
        ({"messages": [USER]}, {"messages": [USER, ANSWER]}, [USER, ANSWER]),
        ({"input": "hi"}, {"output": "hello"}, []),
        ({"messages": [{"type": "text", "text": "no message"}]}, None, []),
        (None, None, []),
    ],
)
def test_messages_are_found_in_the_forms_of_clients(inputs, outputs, expected):
    assert messages(inputs, outputs) == expected


def test_what_a_message_has_beside_its_text_is_kept():
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "find"}], "additional_kwargs": {"x": 1}}
    (found,) = messages(None, {"messages": [call]})
    assert found == {"role": "assistant", "content": "", "tool_calls": [{"name": "find"}]}


def test_a_thread_repeats_nothing_that_was_said_before():
    again = {"role": "user", "content": "again"}
    assert followed_by([USER, ANSWER], [USER, ANSWER, again]) == [USER, ANSWER, again]
    assert followed_by([USER, ANSWER], [again]) == [USER, ANSWER, again]
    assert followed_by([], [USER]) == [USER]
    assert thread_previews([]) == {"all_messages": "", "human_ai_pairs": "", "first_human_last_ai": ""}


@pytest.mark.parametrize(
    ("value", "last", "shown"),
    [
        ({"messages": [USER, ANSWER]}, False, "hi"),
        ({"messages": [USER, ANSWER]}, True, "hello"),
        ({"question": "Where?", "k": 4}, False, "Where?"),
        ({"anything": "text"}, False, "text"),
        ({"a": 1, "b": 2}, False, '{"a":1,"b":2}'),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]}, False, "a"),
        ("text", False, "text"),
        ([1, 2], False, "[1,2]"),
        ({}, False, "{}"),
    ],
)
def test_a_preview_is_what_people_know_a_run_by(value, last, shown):
    assert preview(orjson.dumps(value).decode(), last=last) == shown


def test_a_preview_is_short_even_of_half_a_text():
    assert preview(None) is None
    assert preview('{"input": "' + "x" * 20_000) == ('{"input": "' + "x" * 20_000)[:PREVIEW_CHARS]
    assert len(preview(orjson.dumps({"input": "é" * 9999}).decode())) == PREVIEW_CHARS


@given(JSON, JSON)
def test_any_json_is_read(inputs, outputs):
    found = messages(inputs, outputs)
    assert all({"role", "content"} <= message.keys() for message in found)
    thread_previews(found)
    assert isinstance(preview(orjson.dumps(outputs).decode()), str)


@pytest.mark.parametrize(
    ("text", "value"), [(None, None), ('{"a": 1}', {"a": 1}), ('{"a": 1e999}', None), ("[1, ", None)]
)
def test_what_cannot_be_read_is_no_payload(text, value):
    assert payload(text) == value
