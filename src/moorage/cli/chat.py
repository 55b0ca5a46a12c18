"""`moorage chat`: talk to an agent in the terminal, and answer its questions."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moorage.cli.agents import DeploymentOption, UrlOption, connect_agent
from moorage.cli.client import Client
from moorage.cli.errors import FAILED
from moorage.cli.output import Output, OutputOption, client_command, note, printable, show_json_line
from moorage.kernel.errors import InvalidRequestError

if TYPE_CHECKING:
    from langgraph_sdk.schema import StreamPart

_MODES = ["messages-tuple", "values"]
_AI = {"ai", "AIMessageChunk"}


@client_command
def chat(
    assistant: Annotated[str | None, typer.Argument(help="Name of the graph, or id of the assistant.")] = None,
    thread: Annotated[str | None, typer.Option("--thread", help="Continue this thread. Default: a new one.")] = None,
    message: Annotated[
        list[str] | None, typer.Option("--message", "-m", help="Send this message and exit. Can be repeated.")
    ] = None,
    field: Annotated[
        str,
        typer.Option(
            help="Field of the graph's state for your input: `messages` gets a message, any other field text."
        ),
    ] = "messages",
    url: UrlOption = None,
    deployment: DeploymentOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Talk to an agent: each line that you type is a message, and Ctrl-D ends the talk.

    If the agent asks a question, the next line is your answer: JSON, or else text. -o json prints one event per line.
    """
    with connect_agent(url, deployment) as client:
        name = assistant or _only_graph(client)
        thread_id = thread or client.post("/threads", {})["thread_id"]
        note(f"thread {thread_id}")
        talk = _Talk(client, name, thread_id, field, output)
        for line in _lines(message):
            talk.say(line)
        if talk.failed:
            raise typer.Exit(FAILED)


def _only_graph(client: Client) -> str:
    names = sorted(
        {row["graph_id"] for row in client.post("/assistants/search", {"limit": 1000, "select": ["graph_id"]})}
    )
    if not names:
        raise InvalidRequestError("this server has no graphs; `graphs` of its langgraph.json names them")
    if len(names) != 1:
        raise InvalidRequestError(f"name a graph: `moorage chat GRAPH`. This server has: {', '.join(names)}")
    return str(names[0])


def _lines(messages: list[str] | None) -> Iterator[str]:
    """Yield the given messages, or lines from standard input until it ends."""
    if messages:
        yield from messages
        return
    while True:
        try:
            line = input("> " if sys.stdin.isatty() and sys.stdout.isatty() else "").strip()
        except EOFError:
            return
        if line:
            yield line


class _Talk:
    """A conversation on a thread. `failed` tells how the last run ended."""

    def __init__(self, client: Client, assistant: str, thread_id: str, field: str, output: Output) -> None:
        self._client = client
        self._assistant = assistant
        self._thread = f"/threads/{thread_id}"
        self._field = field
        self._output = output
        self.failed = False

    def say(self, line: str) -> None:
        """Run the agent on the line, and show its answers and its question."""
        asked = self._interrupts()
        if asked:
            answer = _json_or_text(line)
            resume = answer if len(asked) == 1 else {asked[0]["id"]: answer}
            given: dict[str, Any] = {"command": {"resume": resume}}
        else:
            said = [{"role": "user", "content": line}] if self._field == "messages" else line
            given = {"input": {self._field: said}}
        body = {"assistant_id": self._assistant, "stream_mode": _MODES, "on_disconnect": "cancel", **given}
        self._show(self._client.events("POST", f"{self._thread}/runs/stream", body))
        for interrupt in self._interrupts()[:1]:
            note(f"? {_text_of(interrupt['value'])}")

    def _interrupts(self) -> list[Any]:
        return self._client.get(f"{self._thread}/state").get("interrupts") or []

    def _show(self, events: Iterator[StreamPart]) -> None:
        self.failed, streamed, values = False, False, None
        for event in events:
            if self._output is Output.JSON:
                show_json_line({"event": event.event, "data": event.data})
            if event.event == "error":
                self.failed = True
                note(f"error: {_text_of(event.data)}")
            elif event.event == "values":
                values = event.data
            elif event.event.startswith("messages"):
                streamed |= self._show_token(event.data[0])
        if self._output is Output.TABLE and not self.failed:
            typer.echo("" if streamed else self._last_of(values))

    def _show_token(self, message: Mapping[str, Any]) -> bool:
        text = _content_of(message) if message.get("type") in _AI else ""
        if text and self._output is Output.TABLE:
            typer.echo(_safe(text), nl=False)
            sys.stdout.flush()
        return bool(text)

    def _last_of(self, values: Any) -> str:
        """Return the last message of a state, for a graph that streams no messages."""
        state = values if isinstance(values, dict) else {}
        last = state.get(self._field)
        if isinstance(last, list) and last:
            last = last[-1]
        if isinstance(last, dict) and "content" in last:
            return _safe(_content_of(last)) if last.get("type") in _AI else ""
        return _text_of(last) if last is not None else ""


def _content_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, which may be a list of blocks."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else part.get("text", "") for part in content)


def _json_or_text(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


def _text_of(value: Any) -> str:
    return _safe(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _safe(text: str) -> str:
    """Return the text with its line breaks, but without other characters that would control the terminal."""
    return "\n".join(map(printable, text.split("\n")))
