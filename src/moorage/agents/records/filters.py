"""Filters that a project's `on` handlers return. They select the rows that a user may see by the rows' metadata.

`{"owner": "ada"}` and `{"owner": {"$eq": "ada"}}` require this value. `{"members": {"$contains": "ada"}}` requires that
the list contains the element; if a list is given, that it contains all of its elements. A filter with several keys
requires all of them. `$and` and `$or` take lists of filters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from moorage.kernel.encoding import encode


@dataclass(frozen=True)
class Equal:
    key: str
    value: Any


@dataclass(frozen=True)
class Contains:
    """Condition that the list at `key` contains all of `values`."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class AllOf:
    parts: tuple[Filter, ...]


@dataclass(frozen=True)
class AnyOf:
    parts: tuple[Filter, ...]


Filter: TypeAlias = Equal | Contains | AllOf | AnyOf

# The filter that every row passes.
EVERYTHING = AllOf(())


def read_filter(given: Any) -> Filter:
    """Read the filter that a handler returned. Raises TypeError or ValueError for anything else, so that a mistake in a
    handler lets nobody in.
    """
    if not isinstance(given, dict):
        raise TypeError(f"a handler returns None, a boolean or a filter, not {type(given).__name__}")
    return AllOf(tuple(_read_entry(key, value) for key, value in given.items()))


def _read_entry(key: Any, value: Any) -> Filter:
    if not isinstance(key, str):
        raise TypeError(f"a filter names keys of metadata by strings, not {key!r}")
    if key in _JUNCTIONS:
        if not isinstance(value, list | tuple) or not value:
            raise ValueError(f"{key} takes a list of filters")
        return _JUNCTIONS[key](tuple(read_filter(part) for part in value))
    if key.startswith("$"):
        raise ValueError(f"a filter has no operator {key} here: use $and, $or, or a key of the metadata")
    if isinstance(value, dict) and any(str(name).startswith("$") for name in value):
        return AllOf(tuple(_read_operator(key, name, operand) for name, operand in value.items()))
    return Equal(key, _checked(value))


def _read_operator(key: str, name: Any, operand: Any) -> Filter:
    if name == "$eq":
        return Equal(key, _checked(operand))
    if name == "$contains":
        values = tuple(operand) if isinstance(operand, list | tuple | set | frozenset) else (operand,)
        if not values or any(isinstance(value, dict | list | tuple) for value in values):
            raise ValueError("$contains takes a value, or a list of values")
        return Contains(key, tuple(_checked(value) for value in values))
    raise ValueError(f"a filter has no operator {name}: it has $eq and $contains")


def _checked(value: Any) -> Any:
    """Return the value. Raises TypeError if it has no JSON form, since metadata cannot hold such a value."""
    encode(value)
    return value


_JUNCTIONS: dict[str, Callable[[tuple[Filter, ...]], Filter]] = {"$and": AllOf, "$or": AnyOf}
