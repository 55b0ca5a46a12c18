"""Graphs of a project: import them, and open one for a run or a read.

A graph is a compiled graph, a builder, a functional entrypoint, or a factory that makes one. Factories are called for
each run and each read, since what they return may depend on the caller; nothing they return is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_type_hints

import structlog
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from moorage.agents.langgraph_json import GraphSpec
from moorage.kernel.errors import GraphLoadError

log = structlog.get_logger(__name__)

Graph: TypeAlias = "Pregel[Any, Any, Any, Any]"

# Why a graph is opened; factories see it as `runtime.access_context`.
Access = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]


# Keys that a factory may rely on. The limit is langgraph's own, which applies where a run sets none.
_FACTORY_CONFIG: RunnableConfig = {
    "tags": [],
    "metadata": {},
    "callbacks": None,
    "recursion_limit": 10007,
    "configurable": {},
}


@dataclass(frozen=True)
class GraphFault:
    """Why a graph cannot be loaded. `own_line` is the place and the text of the project's own line that failed."""

    graph_id: str
    path: str
    cause: str
    own_line: str | None

    def for_callers(self) -> str:
        """Whoever calls the API need not see the source."""
        return f"Graph '{self.graph_id}' ({self.path}) cannot be loaded: {self.cause}"

    def for_owner(self) -> str:
        return self.for_callers() + (f"\n  {self.own_line}" if self.own_line else "")


class Graphs:
    """All graphs of a project by id. One that cannot be imported does not hide the others."""

    def __init__(self, specs: dict[str, GraphSpec], folder: Path) -> None:
        self._folder = folder
        self.specs = specs
        self._sources: dict[str, Any] = {}
        self.failures: dict[str, GraphFault] = {}

    def load(self) -> None:
        """Import every graph. What fails is kept in `failures` and raised when that graph is asked for."""
        for graph_id, spec in self.specs.items():
            try:
                self._sources[graph_id] = _imported(spec.path, self._folder)
            except (Exception, SystemExit) as error:
                fault = GraphFault(graph_id, spec.path, _cause(error), _own_line(error, self._folder))
                self.failures[graph_id] = fault
                log.debug("graph cannot be loaded", graph=graph_id, file=spec.path, exc_info=error)

    def __contains__(self, graph_id: object) -> bool:
        return graph_id in self.specs

    def is_factory(self, graph_id: str) -> bool:
        """Whether the graph is made anew each time that it is opened, from a config."""
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
    ) -> AsyncIterator[Graph]:
        """The graph, named by its id and bound to the server's saver, until the context ends.

        Raises GraphLoadError when the graph cannot be imported, or its source makes no graph.
        """
        if graph_id in self.failures:
            raise GraphLoadError(self.failures[graph_id].for_callers())
        if graph_id not in self._sources:
            raise GraphLoadError(f"Graph '{graph_id}' is not in langgraph.json")
        async with _made(self._sources[graph_id], access, {**_FACTORY_CONFIG, **(config or {})}, context) as source:
            graph = source.compile() if isinstance(source, StateGraph) else source
            if not isinstance(graph, Pregel):
                raise GraphLoadError(
                    f"Graph '{graph_id}' ({self.specs[graph_id].path}) made {type(graph).__name__}, not a graph"
                )
            yield graph.copy(update={"checkpointer": saver, "name": graph_id})


def output_of(graph: Graph, snapshot: StateSnapshot) -> Any:
    """What a state shows to callers: its output schema. The same as the last of the graph's streamed values."""
    if isinstance(graph.output_channels, str) or not isinstance(snapshot.values, dict):
        return snapshot.values
    return {name: snapshot.values[name] for name in graph.output_channels if name in snapshot.values}


def _cause(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    path = getattr(error, "path", None)  # of an ImportError: where the module lies on this host is not for callers
    return text.replace(path, Path(path).name) if path else text


def _own_line(error: BaseException, folder: Path) -> str | None:
    """The line of the project that was reached last: `agent.py, line 3: import nowhere`."""
    if isinstance(error, SyntaxError) and error.filename and _is_own(error.filename, folder):
        return _shown_line(error.filename, error.lineno or 1, error.text, folder)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename, folder)]
    return _shown_line(frames[-1].filename, frames[-1].lineno or 1, frames[-1].line, folder) if frames else None


def _is_own(file: str, folder: Path) -> bool:
    """Whether a file is of the project, and not of an environment that lies in its folder."""
    path = Path(file).resolve()
    return path.is_relative_to(folder.resolve()) and not {"site-packages", "dist-packages"} & set(path.parts)


def _shown_line(file: str, number: int, text: str | None, folder: Path) -> str:
    return f"{Path(file).resolve().relative_to(folder.resolve())}, line {number}: {(text or '').strip()}"


def _imported(path: str, folder: Path) -> Any:
    """The variable that `file.py:variable` or `package.module:variable` names."""
    module_path, _, variable = path.rpartition(":")
    if not module_path:
        raise ValueError("expected the form file.py:variable or package.module:variable")
    module = (
        _imported_file(folder / module_path) if module_path.endswith(".py") else importlib.import_module(module_path)
    )
    if not hasattr(module, variable):
        raise AttributeError(f"the module has no '{variable}'")
    source = getattr(module, variable)
    if not (isinstance(source, Pregel | StateGraph) or callable(source)):
        raise TypeError(f"'{variable}' is a {type(source).__name__}, not a graph or a function that makes one")
    return source


def _imported_file(file: Path) -> Any:
    """Import a file; as part of its package, where it lies in one, so that relative imports work."""
    if not file.is_file():
        raise FileNotFoundError("the file does not exist")
    root, parts = file.resolve().parent, [file.stem]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    if len(parts) > 1:
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        return importlib.import_module(".".join(parts))
    # Files of equal name in different folders must not replace each other.
    name = f"{file.stem}_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("the file is not a Python module")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@asynccontextmanager
async def _made(
    source: Any, access: Access, config: RunnableConfig, context: dict[str, Any] | None
) -> AsyncIterator[Any]:
    """What the source is or makes, held open while it is used."""
    if isinstance(source, Pregel | StateGraph):
        yield source
        return
    arguments = _arguments(source, access, config, context)
    if inspect.isasyncgenfunction(source):
        source = asynccontextmanager(source)
    elif inspect.isgeneratorfunction(source):
        source = contextlib.contextmanager(source)
    # A synchronous factory may do slow things: it must not stop the server meanwhile.
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
    """A synchronous context manager whose ends may block."""
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    except BaseException as error:
        if not await asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await asyncio.to_thread(manager.__exit__, None, None, None)


def _arguments(
    source: Callable[..., Any], access: Access, config: RunnableConfig, context: dict[str, Any] | None
) -> list[Any]:
    """Recognised by annotation; without one, the first argument is the config and the second the runtime."""
    parameters = [
        parameter
        for parameter in inspect.signature(source).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    try:
        hints = get_type_hints(source)
    except Exception:  # annotations that cannot be resolved say nothing; their text may
        hints = {parameter.name: parameter.annotation for parameter in parameters}
    arguments: list[Any] = []
    for position, parameter in enumerate(parameters):
        hint = str(hints.get(parameter.name, ""))
        if "Runtime" in hint or (not hint and position == 1):
            arguments.append(_runtime(access, context))
        elif parameter.default is parameter.empty or "RunnableConfig" in hint or not hint:
            arguments.append(config)
        else:
            break  # an argument with a default that is none of ours keeps it
    return arguments


def _runtime(access: Access, context: dict[str, Any] | None) -> Any:
    """The `ServerRuntime` of langgraph-sdk for this access."""
    from langgraph_sdk import runtime  # not in the oldest supported langgraph-sdk, whose graphs cannot ask for it

    # The public name `ServerRuntime` is a type alias of these two, which only a server makes.
    if access == "threads.create_run":
        return runtime._ExecutionRuntime(access_context=access, user=None, store=None, context=context)  # type: ignore[arg-type]  # noqa: SLF001
    return runtime._ReadRuntime(access_context=access, user=None, store=None)  # type: ignore[arg-type]  # noqa: SLF001
