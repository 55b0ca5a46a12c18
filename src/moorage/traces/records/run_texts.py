"""Texts of inputs and outputs: messages, and previews for lists of runs. Pure functions on JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from moorage.traces.records.words import JsonObject

PREVIEW_CHARS = 500
_SEARCHED_LEVELS = 6

_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "HumanMessageChunk": "user"}
# Keys under which clients put the main text.
_MAIN_KEYS = ("input", "question", "query", "prompt", "output", "answer", "text", "content", "result", "error")


def messages(inputs: Any, outputs: Any) -> list[JsonObject]:
    """Find the conversation of one run: messages of the inputs, then of the outputs, each once."""
    return followed_by(list(find_messages(inputs)), list(find_messages(outputs)))


def followed_by(earlier: list[JsonObject], later: list[JsonObject]) -> list[JsonObject]:
    """Append messages to a conversation, without the earlier messages that graphs return again."""
    rest = iter(later)
    if all(
        any(each["role"] == other["role"] and each["content"] == other["content"] for other in rest) for each in earlier
    ):
        return later
    return earlier + later


def find_messages(value: Any, level: int = 0) -> Iterator[JsonObject]:
    """Find messages in the formats of OpenAI and LangChain, plain or serialized, in lists at any key."""
    if level > _SEARCHED_LEVELS:
        return
    if isinstance(value, list):
        for item in value:
            yield from find_messages(item, level + 1)
    elif isinstance(value, dict):
        if (message := _as_message(value)) is not None:
            yield message
        else:
            for key in ("messages", "message", "input", "output", "generations", "choices", "chat_history"):
                if isinstance(value.get(key), dict | list):
                    yield from find_messages(value[key], level + 1)


def _as_message(value: JsonObject) -> JsonObject | None:
    kwargs = value.get("kwargs")
    if value.get("lc") and isinstance(kwargs, dict):
        return _as_message({"type": _class_type(value), **kwargs})
    role = value.get("role") or value.get("type")
    if not isinstance(role, str) or role in {"text", "constructor"} or not value.keys() & {"content", "tool_calls"}:
        return None
    shown = {key: inner for key, inner in value.items() if key not in _NOT_SHOWN and inner not in (None, [], {})}
    return {"role": _ROLES.get(role, role), "content": value.get("content"), **shown}


_NOT_SHOWN = frozenset(
    {"role", "type", "content", "lc", "additional_kwargs", "response_metadata", "invalid_tool_calls"}
)
_CLASS_TYPES = {"HumanMessage": "human", "AIMessage": "ai", "SystemMessage": "system", "ToolMessage": "tool"}


def _class_type(value: JsonObject) -> str | None:
    path = value.get("id")
    name = path[-1] if isinstance(path, list) and path else None
    return _CLASS_TYPES.get(str(name).removesuffix("Chunk"))


def thread_previews(conversation: Sequence[JsonObject]) -> dict[str, str]:
    """Write a thread as texts with one JSON object per paragraph, the form that clients parse."""
    turns = [each for each in conversation if each["role"] in ("user", "assistant")]
    asked = next((each for each in turns if each["role"] == "user"), None)
    answered = next((each for each in reversed(turns) if each["role"] == "assistant"), None)
    return {
        "all_messages": _paragraphs(conversation),
        "human_ai_pairs": _paragraphs(turns),
        "first_human_last_ai": _paragraphs(each for each in (asked, answered) if each is not None),
    }


def _paragraphs(conversation: Iterable[JsonObject]) -> str:
    return "\n\n".join(orjson.dumps(each).decode() for each in conversation)


def payload(text: str | None) -> Any:
    """Decode the inputs or outputs of a run. None if there are none, or if decoding fails: payloads are stored as they
    came, and a number may be too large to decode.
    """
    try:
        return orjson.loads(text or "null")
    except orjson.JSONDecodeError:
        return None


def preview(text: str | None, *, last: bool = False) -> str | None:
    """Make a preview from inputs or outputs as JSON text, which may be cut off: the first or last message, else the
    main text, else the JSON.
    """
    if text is None:
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:  # cut off
        return text[:PREVIEW_CHARS]
    return _main_text(value, last=last)[:PREVIEW_CHARS]


def _main_text(value: Any, *, last: bool) -> str:
    if isinstance(value, str):
        return value
    found = list(find_messages(value))
    if found:
        wanted = [each for each in found if each["role"] == ("assistant" if last else "user")] or found
        return _content_text(wanted[-1]["content"])
    if isinstance(value, dict):
        for key in _MAIN_KEYS:
            if isinstance(value.get(key), str):
                return str(value[key])
        if len(value) == 1:
            return _main_text(next(iter(value.values())), last=last)
    return orjson.dumps(value).decode()


def _content_text(content: Any) -> str:
    """Content is a text, or a list of blocks of which some are text."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [
        block if isinstance(block, str) else block.get("text") for block in blocks if isinstance(block, str | dict)
    ]
    return "\n".join(text for text in texts if isinstance(text, str)) or orjson.dumps(content).decode()
