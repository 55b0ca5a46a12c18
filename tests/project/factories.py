"""Factories of every form. Each records in `seen` what it was given."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from graphs import State, _graph, _sleep
from langchain_core.runnables import RunnableConfig
from langgraph.types import interrupt
from langgraph_sdk.runtime import ServerRuntime


def _showing(**seen: Any) -> Any:
    async def show(state: State) -> State:
        return {"seen": seen}

    return _graph(show=show).compile()


def _log(config: RunnableConfig, text: str) -> None:
    """Append to the file that the caller names, so that a test sees when the factory was opened and closed."""
    if path := config["configurable"].get("log"):
        with Path(path).open("a") as file:
            file.write(f"{text}\n")


def plain() -> Any:
    return _showing(factory="plain")


def with_config(config: RunnableConfig) -> Any:
    return _showing(flavour=config["configurable"].get("flavour"))


def with_runtime(runtime: ServerRuntime) -> Any:
    return _showing(access=runtime.access_context, executes=runtime.execution_runtime is not None)


def with_both(config: RunnableConfig, runtime: ServerRuntime) -> Any:
    return _showing(flavour=config["configurable"].get("flavour"), access=runtime.access_context)


async def asynchronous(config: RunnableConfig) -> Any:
    return _showing(factory="async", flavour=config["configurable"].get("flavour"))


@contextmanager
def context_manager(config: RunnableConfig) -> Iterator[Any]:
    _log(config, "open")
    yield _showing(factory="context")
    _log(config, "close")


@asynccontextmanager
async def async_context_manager(config: RunnableConfig) -> AsyncIterator[Any]:
    _log(config, "open")
    yield _showing(factory="async context")
    _log(config, "close")


async def async_generator(config: RunnableConfig) -> AsyncIterator[Any]:
    _log(config, "open")
    yield _showing(factory="generator")
    _log(config, "close")


async def _ask(state: State) -> State:
    return {"items": [interrupt("Which?")]}


def asks(config: RunnableConfig) -> Any:
    """Return a graph whose node is named after the flavour: without the flavour, the waiting node does not exist."""
    return _graph(**{config["configurable"].get("flavour", "none"): _ask}).compile()


def asks_and_sleeps(config: RunnableConfig) -> Any:
    """Return a graph like that of `asks`, with a second node that sleeps."""
    return _graph(**{config["configurable"].get("flavour", "none"): _ask}, sleep=_sleep).compile()
