from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.traces.filter_language.text import (
    DEPTH_MAX,
    LIST_MAX,
    NODES_MAX,
    TEXT_CHARS_MAX,
    FilterSyntaxError,
    parse,
)
from moorage.traces.filter_language.tree import FIELDS, And, Compare, Exists, Has, In, Not, Search, number_text
from tests.traces.filter_strategies import expressions, written

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
TREES = expressions([UUID(int=9)], [AT])


def _eq(name, value):
    return Compare("eq", FIELDS[name], value)


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_what_is_written_reads_back_as_it_was(tree):
    assert parse(written(tree)) == tree


@given(st.text())
def test_any_text_in_quotes_reads_back_as_it_was(text):
    assert parse(written(_eq("name", text))) == _eq("name", text)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_broken_filters_raise_nothing_but_syntax_errors(data):
    text = written(data.draw(TREES))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(_BITS)) + text[at + data.draw(st.integers(0, 5)) :]
    with suppress(FilterSyntaxError):
        assert parse(written(parse(text))) == parse(text)


_BITS = [*"()[],\"'\\ 0-.e", "eq(", "null", "not(", "\\u12", "\0", "é", "1e999", "in(id,[", "--", "9" * 40]


@given(st.text(alphabet='andeqi(),"\\ [0x\0é', max_size=40))
def test_noise_raises_nothing_but_syntax_errors(text):
    with pytest.raises(FilterSyntaxError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ('eq(name, "a")', _eq("name", "a")),
        ("eq(name,'a')", _eq("name", "a")),
        (' eq ( name , "a" ) ', _eq("name", "a")),
        ("""eq(name, "it's")""", _eq("name", "it's")),
        (r"""eq(name, 'it\'s "x" \\ \n \u00e9')""", _eq("name", 'it\'s "x" \\ \n é')),
        (r'eq(name, "\ud83d\ude00")', _eq("name", "😀")),
        (r'like(name, "50\%")', Compare("like", FIELDS["name"], r"50\%")),
        ("eq(error, null)", _eq("error", None)),
        ("eq(is_root, true)", _eq("is_root", True)),
        ('eq(is_root, "false")', _eq("is_root", False)),
        ("gt(total_tokens, -5)", Compare("gt", FIELDS["total_tokens"], -5)),
        ("gt(total_cost, 1.5e-3)", Compare("gt", FIELDS["total_cost"], 0.0015)),
        ("gt(latency, 2.5)", Compare("gt", FIELDS["latency"], 2.5)),
        ('gt(latency, "5s")', Compare("gt", FIELDS["latency"], 5.0)),
        ('gt(latency, "250ms")', Compare("gt", FIELDS["latency"], 0.25)),
        ('gt(latency, "1.5 m")', Compare("gt", FIELDS["latency"], 90.0)),
        ('lt(start_time, "2026-01-31T12:00:00Z")', Compare("lt", FIELDS["start_time"], AT)),
        ('lt(start_time, "2026-01-31T14:00:00+02:00")', Compare("lt", FIELDS["start_time"], AT)),
        ('lt(start_time, "2026-01-31T12:00:00")', Compare("lt", FIELDS["start_time"], AT)),
        ('gte(start_time, "2026-01-31")', Compare("gte", FIELDS["start_time"], AT.replace(hour=0))),
        ('in(run_type, ["llm", "tool"])', In(FIELDS["run_type"], ("llm", "tool"))),
        ("in(run_type, [])", In(FIELDS["run_type"], ())),
        ("and(eq(is_root, true))", And((_eq("is_root", True),))),
        ("not(has(tags, 'x'))", Not(Has(FIELDS["tags"], "x"))),
        ("""has(metadata, '{"variant": "abc"}')""", Has(FIELDS["metadata"], '{"variant": "abc"}')),
        ('exists(metadata, "k")', Exists(FIELDS["metadata"], "k")),
        ("exists(error)", Exists(FIELDS["error"], None)),
        ("search('a b')", Search(None, "a b")),
        ('search(name, "a")', Search(FIELDS["name"], "a")),
        ("eq(metadata_value, 5)", _eq("metadata_value", 5)),
        ("eq(metadata_value, true)", _eq("metadata_value", True)),
    ],
)
def test_forms_of_the_language(text, tree):
    assert parse(text) == tree


@pytest.mark.parametrize(
    ("text", "position", "complaint"),
    [
        ("", 1, "expected an operator such as eq, and or has, found the end"),
        ("eq", 3, 'expected "(", found the end'),
        ("eq(", 4, "expected the name of a field, found the end"),
        ('eq(nome, "a")', 4, 'there is no field "nome"'),
        ('eg(name, "a")', 1, 'there is no operator "eg"'),
        ('eq(name "a")', 9, 'expected ","'),
        ("eq(name, a)", 10, "expected a value: a text in quotes, a number, true, false or null"),
        ('eq(name, "a"', 13, 'expected ")", found the end'),
        ('eq(name, "a', 10, "the text that begins here is not closed"),
        ('eq(name, "a\\', 10, "the text that begins here is not closed"),
        (r'eq(name, "\ud83d")', 10, "the text that begins here holds half a character"),
        ('eq(name, "a") or', 15, "expected the end of the filter"),
        ("and()", 5, "expected an operator"),
        ("gt(error, null)", 11, "gt(error, ...) does not take null"),
        ("eq(is_root, null)", 13, "does not take null"),
        ("eq(metadata_key, null)", 18, "does not take null"),
        ("has(name, 'x')", 5, "has does not apply to name"),
        ("like(total_tokens, '%')", 6, "like does not apply to total_tokens"),
        ("eq(trace_id, 'x')", 14, "expected a UUID in quotes"),
        ("eq(start_time, 'soon')", 16, "expected a time such as"),
        ("eq(start_time, '9999-12-31T23:00:00-23:00')", 16, "expected a time such as"),
        ("gt(latency, 'fast')", 13, "expected seconds as a number, or a duration"),
        ("gt(total_tokens, '5')", 18, "expected a number"),
        ("gt(total_tokens, 1e999)", 18, "the number is too large"),
        ("gt(total_tokens, 12abc)", 18, "expected a value"),
        ("has(metadata, '[1]')", 15, "expected a JSON object"),
        ("has(metadata, 'k')", 15, "expected a JSON object"),
        ("eq(inputs, 'x')", 12, "inputs equals only null here; use has, like or search"),
        ("exists(name, 'x')", 14, "exists(name) takes no key"),
        ("in(name, 'x')", 10, 'expected "["'),
        ("in(name, ['x', null])", 16, "found null"),
        ("status:error AND latency:>10", 7, 'expected "("'),
    ],
)
def test_an_error_names_the_character_and_what_was_expected(text, position, complaint):
    with pytest.raises(FilterSyntaxError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"Invalid filter at character {position}: ")
    assert complaint in str(caught.value)
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("fits", "too_much", "complaint"),
    [
        (
            "not(" * (DEPTH_MAX - 1) + "exists(error)" + ")" * (DEPTH_MAX - 1),
            "not(" * DEPTH_MAX + "exists(error)" + ")" * DEPTH_MAX,
            "nested at most 16 deep",
        ),
        (
            f"or({', '.join(['exists(error)'] * (NODES_MAX - 1))})",
            f"or({', '.join(['exists(error)'] * NODES_MAX)})",
            "at most 128",
        ),
        (
            f"in(name, [{', '.join(['1'] * LIST_MAX)}])",
            f"in(name, [{', '.join(['1'] * (LIST_MAX + 1))}])",
            "at most 1000 members",
        ),
        (f"{' ' * (TEXT_CHARS_MAX - 13)}exists(error)", f"{' ' * TEXT_CHARS_MAX}exists(error)", "at most 64000"),
    ],
    ids=["depth", "size", "list", "length"],
)
def test_limits(fits, too_much, complaint):
    parse(fits)
    with pytest.raises(FilterSyntaxError, match=complaint):
        parse(too_much)


def test_a_deep_or_wide_json_object_is_refused():
    deep = '{"a":' * 17 + "1" + "}" * 17
    wide = "{" + ",".join(f'"k{number}":1' for number in range(129)) + "}"
    for value in (deep, wide, "{" * 100_000):
        with pytest.raises(FilterSyntaxError):
            parse(f"has(metadata, '{value}')")


@pytest.mark.parametrize(
    ("number", "text"),
    [(1.0, "1"), (0.7, "0.7"), (1e-6, "0.000001"), (1.5e-7, "1.5e-7"), (1e20, "100000000000000000000"), (1e21, "1e21")],
)
def test_numbers_read_as_the_engine_writes_them(number, text):
    assert number_text(number) == text
