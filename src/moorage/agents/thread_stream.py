"""Events of a thread, from one run to the next: what was kept, then what comes, for as long as the client stays.

A connection keeps no state here. The number of an event says when it was sent, so that a client may come back with the
last one that it has seen to any server, also after a restart.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from uuid import UUID

from moorage.agents.principals import Principal
from moorage.agents.protocol_events import event_of
from moorage.agents.records.filters import EVERYTHING
from moorage.agents.records.protocol import EventStreamRequest, Subscription
from moorage.agents.records.runs import RunStatus
from moorage.agents.records.words import JsonObject
from moorage.agents.store.runs import RunStore
from moorage.agents.store.threads import ThreadStore
from moorage.agents.stream import Position, StreamReader, position_at, protocol_frame, seq_at, thread_topic
from moorage.http import sse
from moorage.kernel.bus import Bus
from moorage.kernel.encoding import decode
from moorage.kernel.errors import NotFoundError

# A hint that a run has begun may get lost.
_LOOK_S = 1.0
# A short run may be over before its client has opened a stream.
_JUST_NOW_MS = 10_000


class ThreadStreams:
    def __init__(self, runs: RunStore, threads: ThreadStore, reader: StreamReader, bus: Bus) -> None:
        self._runs = runs
        self._threads = threads
        self._reader = reader
        self._bus = bus

    async def events(self, who: Principal, thread_id: UUID, request: EventStreamRequest) -> AsyncIterator[bytes]:
        """Chunks of frames of the events that the client asks for. It may come before its thread is made.

        Raises NotFoundError for a thread of somebody else: where users are kept apart, nobody may wait for one.
        """
        seen = await who.may("threads", "read", {"thread_id": thread_id})
        if seen != EVERYTHING and not await self._threads.exists(thread_id, seen):
            raise NotFoundError(f"Thread with ID {thread_id} not found")
        # Without a number, whoever comes sees what is under way from its beginning, and what they may have started just now.
        just_now = (time.time_ns() // 1_000_000 - _JUST_NOW_MS, 0)
        after = position_at(request.since) if request.since is not None else None
        return self._wanted(thread_id, after or just_now, after or (0, 0), Subscription(request))

    async def _wanted(
        self, thread_id: UUID, over: Position, after: Position, subscription: Subscription
    ) -> AsyncIterator[bytes]:
        heard_at = time.monotonic()
        async for frames in self._frames(thread_id, over, after):
            chunk = b"".join(frame for frame in frames if _is_wanted(frame, subscription))
            if not chunk and time.monotonic() - heard_at >= sse.HEARTBEAT_S:
                chunk = sse.HEARTBEAT
            if chunk:
                heard_at = time.monotonic()
                yield chunk

    async def _frames(self, thread_id: UUID, over: Position, after: Position) -> AsyncIterator[list[bytes]]:
        """Frames later than `after` of one run after the other, which is how a thread runs them; an empty list now and then.
        Runs that ended before `over` are left out.
        """
        shown: set[UUID] = set()
        with self._bus.follow(thread_topic(thread_id)) as news:
            self._bus.ask_others(thread_topic(thread_id))
            while True:
                for run_id in await self._runs.streamed(thread_id, over):
                    if run_id not in shown:
                        shown.add(run_id)
                        async for frames in self._of_run(thread_id, run_id, after):
                            yield frames
                yield []
                await news.read(_LOOK_S)

    async def _of_run(self, thread_id: UUID, run_id: UUID, after: Position) -> AsyncIterator[list[bytes]]:
        last = after
        async for frames in self._reader.kept_and_live(thread_id, run_id, after):
            if frames:
                last = _position_of(frames[-1])
            yield frames
        yield [await self._end_of(thread_id, run_id, last)]

    async def _end_of(self, thread_id: UUID, run_id: UUID, last: Position) -> bytes:
        """How the run ended, as its row tells it: it is told also when the process that executed it has died."""
        end = await self._runs.read_outcome(thread_id, run_id)
        data: JsonObject = {"event": _outcome(end), "run_id": str(run_id)}
        if end and end["error"]:
            data["error"] = end["error"]["message"]
        method, params = event_of("lifecycle", (), time.time_ns() // 1_000_000, data)
        return protocol_frame(method, params, str(seq_at(last) + 1))


def _outcome(end: JsonObject | None) -> str:
    if end is None:  # rolled back, or deleted
        return "interrupted"
    if end["status"] in (RunStatus.ERROR, RunStatus.TIMEOUT):
        return "failed"
    waits = end["status"] == RunStatus.INTERRUPTED or end["thread_status"] == "interrupted"
    return "interrupted" if waits else "completed"


def _position_of(frame: bytes) -> Position:
    return position_at(int(frame[frame.rindex(b"id: ") + 4 :]))


def _is_wanted(frame: bytes, subscription: Subscription) -> bool:
    if not subscription.wants_channel(sse.event_of(frame)):
        return False
    return not subscription.looks_inside or subscription.wants(decode(sse.data_of(frame)))
