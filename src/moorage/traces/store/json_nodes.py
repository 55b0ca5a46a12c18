"""SQL that reads JSON columns: the nodes at a path, all nodes, and the text form of nodes for comparison.

A path consists of keys separated by dots. It passes through lists, which do not count as steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# Binds a value as a parameter of a type; returns the parameter's SQL.
Bind = Callable[[str, str], str]

# Nodes of inputs and outputs lie at most this deep; every object and every list counts.
_JSON_LEVELS = 16
# Levels of lists directly inside of lists, as in LangChain's generations and messages.
_NESTED_LISTS = 3


def walked(column: str, key: str, bind: Bind) -> str:
    """Find the values at a dotted path in a JSON column, as JSON texts. Lists on the path are entered, also at its end.

    A key of the outermost object may contain dots.
    """
    steps = key.split(".")
    found = f"[ifNull({column}, '')]" if len(steps) <= _JSON_LEVELS else "[]::Array(String)"
    for step in steps[:_JSON_LEVELS]:
        bound = bind(step, "String")
        found = f"arrayFilter(node -> node != '', arrayMap(node -> JSONExtractRaw(node, {bound}), {unlisted(found)}))"
    if "." in key:
        whole = f"JSONExtractRaw(ifNull({column}, ''), {bind(key, 'String')})"
        found = f"arrayConcat({found}, arrayFilter(node -> node != '', [{whole}]))"
    return f"if({_may_hold(column, key, bind)}, {found}, [])"


def _may_hold(column: str, key: str, bind: Bind) -> str:
    """Write a test that is false only if the key cannot occur, far cheaper than parsing. An escape may hide any key."""
    last = key.rsplit(".", 1)[-1]
    if not re.fullmatch(r"[\w -]+", last, re.ASCII):
        return "true"
    quoted = bind(f'{last}"', "String")
    return f"(position(ifNull({column}, ''), {quoted}) > 0 OR position(ifNull({column}, ''), '\\\\u') > 0)"


def text_of(node: str) -> str:
    """Write a JSON text as text for comparison: strings without quotes and escapes."""
    return f"if(startsWith({node}, '\"'), JSONExtractString({node}), {node})"


def unlisted(nodes: str, *, keep: bool = False) -> str:
    """Replace lists among JSON texts by their members; with `keep`, lists stay and their members follow."""
    members = "JSONExtractArrayRaw(node)"
    found = f"arrayConcat([node], {members})" if keep else members
    for _ in range(_NESTED_LISTS):
        nodes = f"arrayFlatten(arrayMap(node -> if(startsWith(node, '['), {found}, [node]), {nodes}))"
    return nodes


def all_nodes(column: str) -> str:
    """List every node of a JSON column as (dotted path, JSON text), level by level: the engine has no recursion."""
    step = """arrayFlatten(arrayMap(node -> multiIf(
        startsWith(node.2, '{'), arrayMap(
            pair -> (if(node.1 = '', pair.1, concat(node.1, '.', pair.1)), pair.2), JSONExtractKeysAndValuesRaw(node.2)),
        startsWith(node.2, '['), arrayMap(member -> (node.1, member), JSONExtractArrayRaw(node.2)),
        []), level.1))"""
    start = f"([('', ifNull({column}, ''))], []::Array(Tuple(String, String)))"
    return f"(arrayFold((level, _) -> ({step}, arrayConcat(level.2, {step})), range({_JSON_LEVELS}), {start})).2"
