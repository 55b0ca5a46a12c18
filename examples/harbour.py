"""A harbour pilot without a model key: a model plans, a tool looks up the tide, a person approves, the model answers.

The model is a stand-in that answers by rule and counts words as tokens; in a trace it looks like the one it stands for.
"""

from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict


class Model(BaseChatModel):
    answer: str

    @property
    def _llm_type(self) -> str:
        return "stand-in"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {**super()._get_ls_params(stop, **kwargs), "ls_provider": "openai", "ls_model_name": "gpt-4o-mini"}

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        read, written = sum(len(str(message.content).split()) for message in messages), len(self.answer.split())
        usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.answer, usage_metadata=usage))])


class State(TypedDict, total=False):
    ship: str
    tide: str
    approved: bool
    answer: str


@tool
async def look_up_tide(port: str) -> str:
    """When the water is high at a port."""
    return f"14:20 at {port}, 3.1 m"


async def plan(state: State) -> State:
    await Model(answer=f"First the tide, then a berth for {state['ship']}.").ainvoke(f"Bring {state['ship']} in today.")
    return {"tide": await look_up_tide.ainvoke({"port": "Kiel"})}


async def approve(state: State) -> State:
    return {"approved": interrupt(f"High water {state['tide']}. May {state['ship']} in?") == "yes"}


async def answer(state: State) -> State:
    verdict = "comes in at 14:00, berth 4" if state["approved"] else "waits outside"
    said = await Model(answer=f"{state['ship']} {verdict}.").ainvoke(f"The tide: {state['tide']}. What now?")
    return {"answer": str(said.content)}


graph = (
    StateGraph(State)
    .add_node("plan", plan)
    .add_node("approve", approve)
    .add_node("answer", answer)
    .add_edge(START, "plan")
    .add_edge("plan", "approve")
    .add_edge("approve", "answer")
    .compile()
)
