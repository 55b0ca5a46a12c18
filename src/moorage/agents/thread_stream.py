"""Events of a thread across its runs: kept ones, then live ones, for as long as the client stays.

The server keeps no state of a connection. An event's number encodes when it was sent, so a client may continue after
its last event on any server, even after a restart.
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
from moorage.agents.store.runs import RunStore, StreamedRun
from moorage.agents.store.threads import ThreadStore
from moorage.agents.stream import (
    BEGINNING,
    Position,
    StreamReader,
    id_in,
    position_at,
    position_of,
    protocol_frame,
    seq_at,
    thread_topic,
)
from moorage.agents.translated_events import EventTranslator
from moorage.http import sse
from moorage.kernel.bus import Bus
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import NotFoundError

# A notification that a run has begun may get lost.
_LOOK_S = 1.0
# Event names of frames for a run's beginning and end, and for its state.
_LIFECYCLE, _STATE = frozenset({"metadata", "error"}), frozenset({"values", "updates"})
# A short run may end before its client has opened a stream.
_JUST_NOW_MS = 10_000


class ThreadStreams:
    def __init__(self, runs: RunStore, threads: ThreadStore, reader: StreamReader, bus: Bus) -> None:
        self._runs = runs
        self._threads = threads
        self._reader = reader
        self._bus = bus

    async def events(self, who: Principal, thread_id: UUID, request: EventStreamRequest) -> sse.Frames:
        """Yield frames of the events that the client asks for, and an empty list now and then. The thread need not
        exist yet.

        Raises NotFoundError for a thread of somebody else.
        """
        await self.check(who, thread_id)
        # A client without a number sees the runs under way from their beginning, and those that it may have started
        # just now.
        just_now = (time.time_ns() // 1_000_000 - _JUST_NOW_MS, 0)
        after = position_at(request.since) if request.since is not None else None
        return self._wanted(thread_id, after or just_now, after or (0, 0), Subscription(request))

    async def join(
        self, who: Principal, thread_id: UUID, last_event_id: str | None, modes: frozenset[str]
    ) -> sse.Frames:
        """Yield frames of all runs of a thread, each with an id, and an empty list now and then. The frames are later
        than the last one that the client has seen ("-" for all kept frames), or start from now.

        Raises NotFoundError for a thread of somebody else.
        """
        await self.check(who, thread_id)
        now = (time.time_ns() // 1_000_000, 0)
        after = None if last_event_id is None else BEGINNING if last_event_id == "-" else position_of(last_event_id)
        return self._joined(thread_id, after or now, modes)

    async def _joined(self, thread_id: UUID, after: Position, modes: frozenset[str]) -> sse.Frames:
        async for run in self._runs_of(thread_id, after):
            if run is None:
                yield []
                continue
            async for frames in self._plain_frames(thread_id, run, after):
                yield [frame for frame in frames if _is_of(frame, modes)]

    async def _plain_frames(self, thread_id: UUID, run: StreamedRun, after: Position) -> sse.Frames:
        """Yield the frames of one run and how it ended. For a run of the protocol, only its beginning and its end."""
        last = after
        async for numbered in self._numbered(thread_id, run.run_id, after):
            last = numbered[-1][0] if numbered else last
            yield [] if run.is_protocol else [_with_id(frame, position) for position, frame in numbered]
        end = encode({"status": "run_done", "run_id": str(run.run_id)})
        yield [sse.frame("metadata", end, f"{last[0]}-{last[1] + 1}")]

    async def _numbered(
        self, thread_id: UUID, run_id: UUID, after: Position
    ) -> AsyncIterator[list[tuple[Position, bytes]]]:
        """Yield the frames of one run with their positions. Frames that are not kept are numbered as they come."""
        last = after
        async for frames in self._reader.kept_and_live(thread_id, run_id, after):
            numbered = []
            for frame in frames:
                last = id_in(frame) or max((last[0], last[1] + 1), (time.time_ns() // 1_000_000, 0))
                numbered.append((last, frame))
            yield numbered

    async def _translated(self, thread_id: UUID, run: StreamedRun, after: Position) -> sse.Frames:
        """Yield the protocol events of a run that was started with stream modes."""
        translator, last = EventTranslator(run.graph_id, run.stream_modes), after
        async for numbered in self._numbered(thread_id, run.run_id, after):
            last = numbered[-1][0] if numbered else last
            yield [
                protocol_frame(method, params, str(seq_at(position)))
                for position, frame in numbered
                for method, params in translator.events(frame, position)
            ]
        yield [await self._end_of(thread_id, run.run_id, last)]

    async def check(self, who: Principal, thread_id: UUID) -> None:
        """Check that the thread does not belong to somebody else. Raises NotFoundError."""
        seen = await who.may("threads", "read", {"thread_id": thread_id})
        if seen != EVERYTHING and not await self._threads.exists(thread_id, seen):
            raise NotFoundError(f"Thread with ID {thread_id} not found")

    async def _wanted(self, thread_id: UUID, over: Position, after: Position, subscription: Subscription) -> sse.Frames:
        async for frames in self._frames(thread_id, over, after):
            yield [frame for frame in frames if _is_wanted(frame, subscription)]

    async def _frames(self, thread_id: UUID, over: Position, after: Position) -> sse.Frames:
        """Yield frames later than `after`, one run after the other; an empty list now and then."""
        async for run in self._runs_of(thread_id, over):
            if run is None:
                yield []
                continue
            events_of = self._of_run if run.is_protocol else self._translated
            async for frames in events_of(thread_id, run, after):
                yield frames

    async def _runs_of(self, thread_id: UUID, over: Position) -> AsyncIterator[StreamedRun | None]:
        """Yield each run once, in the order in which the thread executes them, and None now and then. Omits runs that
        ended before `over`.
        """
        shown: set[UUID] = set()
        with self._bus.follow(thread_topic(thread_id)) as news:
            self._bus.ask_others(thread_topic(thread_id))
            while True:
                for run in await self._runs.streamed(thread_id, over):
                    if run.run_id not in shown:
                        shown.add(run.run_id)
                        yield run
                yield None
                await news.read(_LOOK_S)

    async def _of_run(self, thread_id: UUID, run: StreamedRun, after: Position) -> sse.Frames:
        last = after
        async for frames in self._reader.kept_and_live(thread_id, run.run_id, after):
            if frames:
                last = id_in(frames[-1]) or last
            yield frames
        yield [await self._end_of(thread_id, run.run_id, last)]

    async def _end_of(self, thread_id: UUID, run_id: UUID, last: Position) -> bytes:
        """Return the end of the run from its row, which holds it even if the process that executed the run has died."""
        end = await self._runs.read_outcome(thread_id, run_id)
        data: JsonObject = {"event": _outcome(end), "run_id": str(run_id)}
        if end and end["error"]:
            data["error"] = end["error"]["message"]
        at = int(end["updated_at"].timestamp() * 1000) if end else last[0]
        method, params = event_of("lifecycle", (), at, data)
        return protocol_frame(method, params, str(seq_at(last) + 1))


def _with_id(frame: bytes, position: Position) -> bytes:
    return frame if id_in(frame) else frame[:-2] + b"id: %d-%d\r\n\r\n" % position


def _outcome(end: JsonObject | None) -> str:
    if end is None:  # the run was rolled back or deleted
        return "interrupted"
    if end["status"] in (RunStatus.ERROR, RunStatus.TIMEOUT):
        return "failed"
    waits = end["status"] == RunStatus.INTERRUPTED or end["thread_status"] == "interrupted"
    return "interrupted" if waits else "completed"


def _is_of(frame: bytes, modes: frozenset[str]) -> bool:
    event = sse.event_of(frame).partition("|")[0]
    return (
        "run_modes" in modes
        or ("lifecycle" in modes and event in _LIFECYCLE)
        or ("state_update" in modes and event in _STATE)
    )


def _is_wanted(frame: bytes, subscription: Subscription) -> bool:
    if not subscription.wants_channel(sse.event_of(frame)):
        return False
    return not subscription.looks_inside or subscription.wants(decode(sse.data_of(frame)))
