"""Graphs that return what they know of their user."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph_sdk.runtime import ServerRuntime
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    text: str
    told: dict[str, Any]


@dataclass
class Context:
    langgraph_auth_user_id: str = "nobody"
    colour: str = "none"


def tell(state: State, config: RunnableConfig, runtime: Runtime[Context]) -> State:
    configurable = config["configurable"]
    user, server = configurable["langgraph_auth_user"], getattr(runtime, "server_info", None)
    told = {
        "user": user,
        "by_attribute": user and user.identity,
        "user_id": configurable["langgraph_auth_user_id"],
        "permissions": configurable["langgraph_auth_permissions"],
        "server_info": server and server.user and server.user.identity,
        "context": runtime.context and runtime.context.langgraph_auth_user_id,
    }
    return {"told": told}


async def wait(state: State) -> State:  # for as many seconds as the text says
    await asyncio.sleep(float(state["text"]))
    return {}


def _graph(node: Any, context: Any = None) -> Any:
    builder = StateGraph(State, context_schema=context)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile()


whoami = _graph(tell, Context)
slow = _graph(wait)


async def factory(config: RunnableConfig, runtime: ServerRuntime) -> Any:
    """Return a graph of the user's own: a node with their name, and with the configuration of the assistant."""
    assert config["configurable"]["langgraph_auth_user_id"] == runtime.ensure_user().identity
    node = runtime.ensure_user().identity + config["configurable"].get("suffix", "")
    builder = StateGraph(State)
    builder.add_node(node, tell)
    builder.add_edge(START, node)
    return builder
