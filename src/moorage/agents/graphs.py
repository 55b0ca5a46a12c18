"""Graphs of a project: import them, and open one for a run or a read.

A graph is a compiled graph, a builder, a functional entrypoint, or a factory that makes one. Factories are called for
each run and each read, and their results are never kept, because they may depend on the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_type_hints

import structlog
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore
from langgraph.types import StateSnapshot

from moorage.agents.imports import cause_of, import_variable, own_line
from moorage.agents.langgraph_json import GraphSpec
from moorage.agents.records.users import User
from moorage.kernel.errors import GraphLoadError

log = structlog.get_logger(__name__)

Graph: TypeAlias = "Pregel[Any, Any, Any, Any]"

# Why a graph is opened; factories see it as `runtime.access_context`.
Access = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]


# Keys that a factory may rely on. The recursion limit is LangGraph's default, which applies where a run sets none.
_FACTORY_CONFIG: RunnableConfig = {
    "tags": [],
    "metadata": {},
    "callbacks": None,
    "recursion_limit": 10007,
    "configurable": {},
}


@dataclass(frozen=True)
class GraphFault:
    """The reason why a graph cannot be loaded. `own_line` is the place and text of the line of the project's own code
    that failed.
    """

    graph_id: str
    path: str
    cause: str
    own_line: str | None

    def for_callers(self) -> str:
        """Return the reason without source code, which callers of the API need not see."""
        return f"Graph '{self.graph_id}' ({self.path}) cannot be loaded: {self.cause}"

    def for_owner(self) -> str:
        return self.for_callers() + (f"\n  {self.own_line}" if self.own_line else "")


class Graphs:
    """All graphs of a project by id. A graph that cannot be imported does not affect the others."""

    def __init__(self, specs: dict[str, GraphSpec], folder: Path, store: BaseStore | None = None) -> None:
        """Make the registry. `store` is the long-term memory that all graphs get."""
        self._folder = folder
        self._store = store
        self.specs = specs
        self._sources: dict[str, Any] = {}
        self.failures: dict[str, GraphFault] = {}

    def load(self) -> None:
        """Import every graph. Import errors are kept in `failures`, and raised when that graph is opened."""
        for graph_id, spec in self.specs.items():
            try:
                self._sources[graph_id] = _load_graph(spec.path, self._folder)
            except (Exception, SystemExit) as error:
                fault = GraphFault(graph_id, spec.path, cause_of(error), own_line(error, self._folder))
                self.failures[graph_id] = fault
                log.debug("graph cannot be loaded", graph=graph_id, file=spec.path, exc_info=error)

    def __contains__(self, graph_id: object) -> bool:
        return graph_id in self.specs

    def is_factory(self, graph_id: str) -> bool:
        """Return True if the graph is made from a config each time it is opened."""
        return not isinstance(self._sources.get(graph_id), Pregel | StateGraph)

    @property
    def ids(self) -> list[str]:
        return list(self.specs)

    @property
    def loaded(self) -> list[str]:
        return list(self._sources)

    @asynccontextmanager
    async def open(
        self,
        graph_id: str,
        access: Access,
        *,
        config: RunnableConfig | None = None,
        context: dict[str, Any] | None = None,
        saver: BaseCheckpointSaver[Any] | None = None,
        user: User | None = None,
    ) -> AsyncIterator[Graph]:
        """Open the graph until the context ends, named by its id and bound to the server's saver.

        Raises GraphLoadError when the graph cannot be imported, or its source makes no graph.
        """
        if graph_id in self.failures:
            raise GraphLoadError(self.failures[graph_id].for_callers())
        if graph_id not in self._sources:
            raise GraphLoadError(f"Graph '{graph_id}' is not in langgraph.json")
        given: RunnableConfig = {**_FACTORY_CONFIG, **(config or {})}
        given["configurable"] = {**given["configurable"], **identity(user)}
        async with _made(self._sources[graph_id], access, given, context, user, self._store) as source:
            graph = source.compile() if isinstance(source, StateGraph) else source
            if not isinstance(graph, Pregel):
                raise GraphLoadError(
                    f"Graph '{graph_id}' ({self.specs[graph_id].path}) made {type(graph).__name__}, not a graph"
                )
            yield graph.copy(update={"checkpointer": saver, "store": self._store, "name": graph_id})


def identity(user: User | None) -> dict[str, Any]:
    """Return the entries of `config.configurable` that describe the user. They must never be taken from a request,
    since a caller could forge them.
    """
    return {
        "user_id": user.identity if user else "",
        "langgraph_auth_user": user,
        "langgraph_auth_user_id": user.identity if user else "",
        "langgraph_auth_permissions": list(user.permissions) if user else [],
    }


def output_of(graph: Graph, snapshot: StateSnapshot) -> Any:
    """Return the state's values in the graph's output schema. They equal the last streamed values."""
    if isinstance(graph.output_channels, str) or not isinstance(snapshot.values, dict):
        return snapshot.values
    return {name: snapshot.values[name] for name in graph.output_channels if name in snapshot.values}


def _load_graph(path: str, folder: Path) -> Any:
    source = import_variable(path, folder)
    if not (isinstance(source, Pregel | StateGraph) or callable(source)):
        name = path.rpartition(":")[2]
        raise TypeError(f"'{name}' is a {type(source).__name__}, not a graph or a function that makes one")
    return source


@asynccontextmanager
async def _made(
    source: Any,
    access: Access,
    config: RunnableConfig,
    context: dict[str, Any] | None,
    user: User | None,
    store: BaseStore | None,
) -> AsyncIterator[Any]:
    """Make the graph from its source, and keep it open until the context ends."""
    if isinstance(source, Pregel | StateGraph):
        yield source
        return
    arguments = _arguments(source, config, partial(_runtime, access, context, user, store))
    if inspect.isasyncgenfunction(source):
        source = asynccontextmanager(source)
    elif inspect.isgeneratorfunction(source):
        source = contextlib.contextmanager(source)
    # A synchronous factory may block, so it runs in a thread.
    made = source(*arguments) if _is_async(source) else await asyncio.to_thread(source, *arguments)
    if inspect.isawaitable(made):
        made = await made
    if isinstance(made, AbstractAsyncContextManager) and not isinstance(made, Pregel):
        async with made as graph:
            yield graph
    elif isinstance(made, AbstractContextManager) and not isinstance(made, Pregel):
        async with _in_threads(made) as graph:
            yield graph
    else:
        yield made


def _is_async(source: Any) -> bool:
    return inspect.iscoroutinefunction(source) or inspect.isasyncgenfunction(inspect.unwrap(source))


@asynccontextmanager
async def _in_threads(manager: AbstractContextManager[Any]) -> AsyncIterator[Any]:
    """Run a synchronous context manager whose entry and exit may block, in threads."""
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    except BaseException as error:
        if not await asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await asyncio.to_thread(manager.__exit__, None, None, None)


def _arguments(source: Callable[..., Any], config: RunnableConfig, runtime: Callable[[], Any]) -> list[Any]:
    """Return the arguments of the factory. Parameters are recognised by annotation; without one, the first is the
    config and the second the runtime.
    """
    parameters = [
        parameter
        for parameter in inspect.signature(source).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    try:
        hints = get_type_hints(source)
    except Exception:  # annotations that cannot be resolved are matched by their text
        hints = {parameter.name: parameter.annotation for parameter in parameters}
    arguments: list[Any] = []
    for position, parameter in enumerate(parameters):
        hint = str(hints.get(parameter.name, ""))
        if "Runtime" in hint or (not hint and position == 1):
            arguments.append(runtime())
        elif parameter.default is parameter.empty or "RunnableConfig" in hint or not hint:
            arguments.append(config)
        else:
            break  # a parameter with a default and a foreign annotation keeps its default
    return arguments


def _runtime(access: Access, context: dict[str, Any] | None, user: User | None, store: BaseStore | None) -> Any:
    """Make langgraph-sdk's `ServerRuntime` for this access."""
    from langgraph_sdk import runtime  # the oldest supported langgraph-sdk has none, and its graphs cannot ask for it

    # The public name `ServerRuntime` is a type alias of these two classes, which only a server instantiates.
    shared: dict[str, Any] = {"access_context": access, "user": user, "store": store}
    if access == "threads.create_run":
        return runtime._ExecutionRuntime(**shared, context=context)  # noqa: SLF001
    return runtime._ReadRuntime(**shared)  # noqa: SLF001
