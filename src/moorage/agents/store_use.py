"""Does a graph ask for the long-term store? It is not served yet, and a graph that needs it is to fail before it runs.

Read from the code without running it: a store that it was compiled with, `store` parameters, `InjectedStore`, `get_store()` and
`runtime.store` in the functions of nodes and tools, and in those of the project that these call. Code of installed packages is
not looked at: it serves graphs with and without a store.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sysconfig
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from langgraph.pregel import Pregel

_PACKAGES = tuple({sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib", "platstdlib")})
_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")


def store_use(graph: Pregel[Any, Any, Any, Any]) -> str | None:
    """What asks for the store, such as `node 'remember'`; None when nothing does."""
    if graph.store is not None:
        return "a store that it was compiled with"
    for name, node in graph.nodes.items():
        for step in _steps(node.bound):
            if isinstance(step, Pregel):
                inner = store_use(step)
                if inner:
                    return f"{inner} of the subgraph '{name}'"
            for tool_name, tool in getattr(step, "tools_by_name", {}).items():
                if any(_asks(function, "InjectedStore") for function in _functions(tool, "func", "coroutine")):
                    return f"tool '{tool_name}'"
            if any(_asks(function, "Store") for function in _functions(step, "func", "afunc")):
                return f"node '{name}'"
    return None


def _steps(bound: Any) -> Iterator[Any]:
    """A node's runnable, or those that it is a sequence of."""
    steps = getattr(bound, "steps", None)
    yield from steps if isinstance(steps, list | tuple) else (bound,)


def _functions(holder: Any, *attributes: str) -> Iterator[FunctionType]:
    for attribute in attributes:
        if (function := _plain(getattr(holder, attribute, None))) is not None:
            yield function


def _plain(source: Any) -> FunctionType | None:
    """The function behind partials, wrappers, methods and callable objects, if it is the project's own."""
    while isinstance(source, functools.partial):
        source = source.func
    source = inspect.unwrap(source) if callable(source) else source
    source = getattr(source, "__func__", source)
    if not isinstance(source, FunctionType) and callable(source):
        source = type(source).__call__
    if isinstance(source, FunctionType) and not source.__code__.co_filename.startswith(_PACKAGES):
        return source
    return None


def _asks(function: FunctionType, annotation: str) -> bool:
    """Whether LangGraph would give the function a store, or it takes one from the runtime."""
    parameter = _parameters(function).get("store")
    return (parameter is not None and annotation in parameter) or _takes_store(function, set())


def _parameters(function: Callable[..., Any]) -> dict[str, str]:
    """Names of parameters with the text of their annotations; `BaseStore` stands for none on `store`."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        given = parameter.annotation
        found[name] = ("BaseStore" if name == "store" else "") if given is parameter.empty else str(given)
    return found


def _takes_store(function: FunctionType, seen: set[CodeType]) -> bool:
    if function.__code__ in seen:
        return False
    seen.add(function.__code__)
    runtimes = {name for name, text in _parameters(function).items() if "Runtime" in text or name == "runtime"}
    for code in _codes(function.__code__):
        if "get_store" in code.co_names or _reads_store(code, runtimes):
            return True
        for name in code.co_names:
            called = function.__globals__.get(name)
            inner = (
                _plain(getattr(called, "func", called)) if callable(called) and not inspect.isclass(called) else None
            )
            if inner is not None and _takes_store(inner, seen):
                return True
    return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code and what is defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _reads_store(code: CodeType, runtimes: set[str]) -> bool:
    """Whether the code reads `.store` of one of these variables."""
    loaded: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_ATTR" and instruction.argval == "store" and loaded in runtimes:
            return True
        is_load = instruction.opname.startswith(_LOADS)
        # Newer Pythons load two variables at once: the attribute is of the second.
        value = instruction.argval[-1] if isinstance(instruction.argval, tuple) and is_load else instruction.argval
        loaded = value if is_load else None
    return False
