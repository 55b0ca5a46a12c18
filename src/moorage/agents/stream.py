"""A run's frames: sent by the process that executes it, followed by any number of clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from uuid import UUID

from moorage.agents.live import LiveRuns
from moorage.agents.records import ENDED
from moorage.agents.store.runs import RunStore
from moorage.http import sse
from moorage.kernel.bus import Bus, Follower
from moorage.kernel.errors import UnavailableError

# Positions in a resumable stream are (millis, number) pairs, `<millis>-<number>` on the wire.
Position = tuple[int, int]
BEGINNING: Position = (-1, -1)
# Enough for another process to hear that we follow, and to write what it had published before.
_ELSEWHERE_S = 0.2


def topic(run_id: UUID) -> str:
    """Where a run's frames are published."""
    return f"run:{run_id.hex}"


def result_topic(run_id: UUID) -> str:
    """Where a run's result is published: one message, JSON, and the topic closes."""
    return f"result:{run_id.hex}"


def position_of(event_id: str) -> Position | None:
    """The position that `Last-Event-ID` names; None for text that is no event id."""
    if event_id in ("-1", "0"):
        return BEGINNING
    millis, _, number = event_id.partition("-")
    try:
        return int(millis), int(number)
    except ValueError:
        return None


class RunStream:
    """The sending side. Frames of a resumable stream are also rows, so that a client can come back for them."""

    def __init__(self, run_id: UUID, bus: Bus, runs: RunStore, *, resumable: bool) -> None:
        self._run_id = run_id
        self._topic = topic(run_id)
        self._bus = bus
        self._runs = runs
        self._resumable = resumable
        self._last: Position = BEGINNING
        self._written: list[asyncio.Future[None]] = []

    @property
    def is_wanted(self) -> bool:
        """Whether anybody follows, or will be able to read it later. If not, frames need not be made."""
        return self._resumable or self._bus.has_followers(self._topic)

    def send(self, event: str, data: bytes) -> None:
        if not self._resumable:
            self._bus.publish(self._topic, sse.frame(event, data))
            return
        millis = max(self._last[0], time.time_ns() // 1_000_000)
        number = self._last[1] + 1 if millis == self._last[0] else 0
        self._last = (millis, number)
        frame = sse.frame(event, data, f"{millis}-{number}")
        self._bus.publish(self._topic, frame)
        self._written.append(self._runs.put_frame(self._run_id, millis, number, frame))

    async def flush(self) -> None:
        """Wait until what was sent is durable."""
        written, self._written = self._written, []
        await asyncio.gather(*written)

    def close(self, result: bytes | None) -> None:
        """Nothing more will come. Without a result the run has not ended: it will go on elsewhere, or later, and who
        follows it goes on following.
        """
        topics = (self._topic, result_topic(self._run_id))
        if result is not None:
            self._bus.publish(topics[1], result)
            for name in topics:
                self._bus.close_topic(name)
            return
        for name in topics:
            if self._bus.has_followers(name):
                self._bus.ask_others(name)


def _position_in(frame: bytes) -> Position:
    start = frame.rindex(b"id: ") + 4
    return position_of(frame[start : frame.index(b"\r", start)].decode()) or BEGINNING


class StreamReader:
    """The reading side: what was kept, then what comes."""

    def __init__(self, runs: RunStore, bus: Bus, live: LiveRuns) -> None:
        self._runs = runs
        self._bus = bus
        self._live = live

    def follow(self, run_id: UUID) -> AbstractContextManager[Follower]:
        """A follower of the frames. Enter it before the run starts, or its first frames are lost."""
        return self._bus.follow(topic(run_id))

    def follow_result(self, run_id: UUID) -> AbstractContextManager[Follower]:
        """A follower of the result."""
        return self._bus.follow(result_topic(run_id))

    def ask_for_result(self, run_id: UUID) -> None:
        """Have the result sent here, wherever the run executes."""
        if not self._live.is_executing(run_id):
            self._bus.ask_others(result_topic(run_id))

    async def live(self, follower: Follower, thread_id: UUID, run_id: UUID, *, resumable: bool) -> AsyncIterator[bytes]:
        """Chunks of frames until the run ends, with heartbeats in silence.

        Raises UnavailableError when frames are missing: it must not look as if the run had ended.
        """
        last = BEGINNING
        while True:
            frames = await follower.read(sse.HEARTBEAT_S)
            self._check_for_loss(follower, run_id)
            if frames:
                if resumable:
                    last = _position_in(frames[-1])
                yield frames[0] if len(frames) == 1 else b"".join(frames)
            elif follower.closed:
                return
            elif await self._has_ended(thread_id, run_id):
                if resumable:
                    async for frame in self._kept(run_id, last):
                        yield frame
                return
            else:
                yield sse.HEARTBEAT

    def _check_for_loss(self, follower: Follower, run_id: UUID) -> None:
        if follower.overrun:
            raise UnavailableError("The reader is too slow, or the server stops")
        if follower.gap and not self._live.is_executing(run_id):
            raise UnavailableError("What another process sent was lost")

    async def join(
        self, thread_id: UUID, run_id: UUID, *, after: Position | None, resumable: bool, modes: frozenset[str] | None
    ) -> AsyncIterator[bytes]:
        """Kept frames later than `after` (none when it is None), then live ones that are later still."""
        with self.follow(run_id) as follower:
            # Read the status after following: a run that has ended before leaves only what was kept.
            ended = await self._has_ended(thread_id, run_id)
            last = after or BEGINNING
            if not ended:
                await self._settle(run_id)
            if resumable and after is not None:
                async for frame in self._kept(run_id, after):
                    last = _position_in(frame)
                    if _is_of(frame, modes):
                        yield frame
            if ended:
                return
            async for chunk in self._later(follower, thread_id, run_id, last if resumable else None, modes):
                yield chunk

    async def _settle(self, run_id: UUID) -> None:
        """Until what was published before we followed is kept, or it would be in neither place."""
        if self._live.is_executing(run_id):
            await self._runs.frames_written()
        else:
            self._bus.ask_others(topic(run_id))
            await asyncio.sleep(_ELSEWHERE_S)

    async def _kept(self, run_id: UUID, after: Position) -> AsyncIterator[bytes]:
        while page := await self._runs.frames(run_id, after):
            for millis, number, frame in page:
                after = (millis, number)
                yield frame

    async def _later(
        self,
        follower: Follower,
        thread_id: UUID,
        run_id: UUID,
        last: Position | None,
        modes: frozenset[str] | None,
    ) -> AsyncIterator[bytes]:
        """Live frames, without those that the kept ones held already."""
        while True:
            frames = await follower.read(sse.HEARTBEAT_S)
            self._check_for_loss(follower, run_id)
            wanted = [
                frame for frame in frames if _is_of(frame, modes) and (last is None or _position_in(frame) > last)
            ]
            if wanted:
                yield b"".join(wanted)
                last = last and _position_in(wanted[-1])
            elif follower.closed and not frames:
                return
            elif not frames and await self._has_ended(thread_id, run_id):
                if last is not None:
                    async for frame in self._kept(run_id, last):
                        if _is_of(frame, modes):
                            yield frame
                return
            elif not frames:
                yield sse.HEARTBEAT

    async def _has_ended(self, thread_id: UUID, run_id: UUID) -> bool:
        try:
            end = await self._runs.read_end(thread_id, run_id)
        except UnavailableError:
            return False  # nobody can tell now; a run that is lost is taken up again when the database is back
        return end is None or end["status"] in ENDED


def _is_of(frame: bytes, modes: frozenset[str] | None) -> bool:
    """Whether the frame belongs to one of the modes; an error and feedback links belong to all."""
    if modes is None:
        return True
    event = sse.event_of(frame).partition("|")[0].partition("/")[0]
    return event in modes or event in ("error", "feedback")
