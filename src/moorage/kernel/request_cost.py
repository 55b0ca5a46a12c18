"""The cost of request bodies: the memory that all requests of a process take together, and the number of JSON values in
each. A key of an object counts as a value.

In JSON a value may take 2 bytes, but as an object up to 120 bytes. Values are therefore counted in the bytes, before
any of them becomes an object.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from moorage.kernel.errors import BodyTooLargeError, OverloadedError

T = TypeVar("T")
Text = bytes | bytearray

# Measured with orjson and pydantic: a list of empty objects takes 72 bytes per value, of objects with one field 120.
_VALUE_BYTES = 100
# Copies of a text in memory: decoded, encoded again, on its way to the database and back, and in the answer.
_COPIES = 5
# Each value but the first follows one of these. A key takes as long to parse as a value, and parsing blocks all
# threads.
_STRUCTURE = b",:[{"
_TEXT = bytes(set(range(256)) - set(_STRUCTURE))
# Small enough that other threads run between two windows.
_WINDOW_BYTES = 2**18

# The beginning of a character beyond the basic plane, as UTF-8 or as an escape.
_WIDE = re.compile(rb"[\xf0-\xf4]|\\u[dD][89abAB]")
# Python takes four bytes for each character of a string that holds such a character.
WIDE_BYTES_MAX = 32 * 2**20
_WIDE_CHARACTER_BYTES = 4

# A smaller body is parsed on the event loop: a thread would take longer.
_LARGE_BYTES = 2**21
# A single thread, so that two large bodies are never parsed at the same time.
_parser = ThreadPoolExecutor(1, "parse")


class MemoryBudget:
    """A count of bytes with a limit for all requests together. A single request may exceed it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0

    @property
    def taken_bytes(self) -> int:
        return self._bytes

    def take(self, size_bytes: int, held_bytes: int) -> None:
        """Take more bytes for a request that already holds `held_bytes`. Raises OverloadedError."""
        if self._bytes > held_bytes and self._bytes + size_bytes > self._bytes_max:
            raise OverloadedError("The server holds as many request bodies as its memory allows; try again in a moment")
        self._bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self._bytes -= size_bytes


class RequestCost:
    """The share of one request in the budget, and the number of JSON values that it may still hold."""

    def __init__(self, budget: MemoryBudget, json_values_max: int) -> None:
        self._budget = budget
        self._bytes = 0
        self._values_max = self._values_left = json_values_max

    def take(self, size_bytes: int) -> None:
        """Take bytes from the budget. Raises OverloadedError."""
        self._budget.take(size_bytes, self._bytes)
        self._bytes += size_bytes

    async def take_json(self, *texts: Text) -> None:
        """Take the memory that the texts need when they are parsed one after the other.

        Raises OverloadedError, and BodyTooLargeError when the request holds more values than allowed.
        """
        size_bytes, enough = sum(map(len, texts)), self._values_left
        count = await parse(lambda: _count_all(texts, enough), size_bytes)
        if count > enough:
            raise BodyTooLargeError(
                f"The JSON of this request holds more than {self._values_max} values and keys; send it in several requests"
            )
        self._values_left -= count
        largest = max(texts, key=len, default=b"")
        character_bytes = await parse(lambda: _character_bytes(largest), len(largest))
        if character_bytes == _WIDE_CHARACTER_BYTES and len(largest) > WIDE_BYTES_MAX:
            raise BodyTooLargeError(
                f"A JSON text with characters beyond U+FFFF, such as emoji, may hold {WIDE_BYTES_MAX} bytes at most"
            )
        self.take(count * _VALUE_BYTES + _COPIES * character_bytes * len(largest))

    def give_back(self) -> None:
        self._budget.give_back(self._bytes)
        self._bytes = 0


async def parse(function: Callable[[], T], size_bytes: int) -> T:
    """Run a function that parses a body of that size, off the event loop if the body is large."""
    if size_bytes < _LARGE_BYTES:
        return function()
    return await asyncio.get_running_loop().run_in_executor(_parser, function)


def _count_all(texts: Sequence[Text], enough: int) -> int:
    """Count the values. Commas inside strings are excluded only if the count exceeds the limit with them, because that
    takes ten times as long.
    """
    if sum(map(len, texts)) < _LARGE_BYTES and (count := _count(b",".join(texts), enough)) <= enough:
        return count  # many small texts, as in typical trace runs, cost half as much joined
    count = 0
    for text in texts:
        found = _count(text, enough - count)
        count += found if count + found <= enough else _count_outside_strings(text, enough - count)
        if count > enough:
            break
    return count


def _count(data: Text, enough: int) -> int:
    count = 1
    for window in _windows(data):
        count += len(window.translate(None, _TEXT))
        if count > enough:
            break
    return count


def _count_outside_strings(data: Text, enough: int) -> int:
    count, in_string, half_escape = 1, False, b""
    for window in _windows(data):
        # Remove pairs of backslashes first: a single one that is left escapes the next character.
        text = (half_escape + window).replace(b"\\\\", b"")
        half_escape = b"\\" if text.endswith(b"\\") else b""
        pieces = text.replace(b'\\"', b"").split(b'"')
        count += len(b"".join(pieces[in_string::2]).translate(None, _TEXT))
        in_string ^= len(pieces) % 2 == 0
        if count > enough:
            break
    return count


def _character_bytes(text: Text) -> int:
    """Return the bytes that Python takes for each character of a large JSON text."""
    if len(text) < _LARGE_BYTES:
        return 1
    if any(_WIDE.search(window) for window in _windows(text)):
        return _WIDE_CHARACTER_BYTES
    return 1 if text.isascii() and b"\\u" not in text else 2


def _windows(data: Text) -> Iterator[Text]:
    if len(data) <= _WINDOW_BYTES:
        yield data
        return
    for start in range(0, len(data), _WINDOW_BYTES):
        yield data[start : start + _WINDOW_BYTES]
