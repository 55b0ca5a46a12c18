"""Frames of a run: published by the process that executes it, followed by any number of clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from uuid import UUID

from moorage.agents.live import LiveRuns
from moorage.agents.records.runs import ENDED
from moorage.agents.store.frames import PAGE_FRAMES, FrameStore
from moorage.agents.store.runs import RunStore
from moorage.http import sse
from moorage.kernel.bus import Bus, Follower
from moorage.kernel.errors import UnavailableError

# Positions in a resumable stream are (millis, number) pairs, `<millis>-<number>` on the wire.
Position = tuple[int, int]
# Converts a position to one number that JavaScript holds exactly; numbers within a millisecond are below this.
_NUMBERS = 1000
BEGINNING: Position = (-1, -1)
# How long to wait until another process has stored a frame that it published, in case that process has died.
_KEPT_S_MAX = 10.0
_LOOK_S = 0.05


def topic(run_id: UUID) -> str:
    """Return the topic of a run's frames."""
    return f"run:{run_id.hex}"


def result_topic(run_id: UUID) -> str:
    """Return the topic of a run's result: one JSON message, then the topic closes."""
    return f"result:{run_id.hex}"


def position_of(event_id: str) -> Position | None:
    """Parse `Last-Event-ID` as a position; None for text that is no event id."""
    if event_id in ("-1", "0"):
        return BEGINNING
    millis, _, number = event_id.partition("-")
    try:
        return (int(millis), int(number)) if number else position_at(int(millis))
    except ValueError:
        return None


def position_at(seq: int) -> Position:
    """Return the position of the protocol event with this number."""
    return divmod(seq, _NUMBERS)


def seq_at(position: Position) -> int:
    return position[0] * _NUMBERS + position[1]


def plain_frame(event: str, data: bytes, event_id: str) -> bytes:
    return sse.frame(event, data, event_id)


def protocol_frame(method: str, params: bytes, event_id: str) -> bytes:
    """Make the frame of a protocol event. Its number is its id, and stays the same across connections."""
    seq = seq_at(position_of(event_id) or BEGINNING)
    event = b'{"type":"event","event_id":"%d","seq":%d,"method":"%b","params":%b}' % (seq, seq, method.encode(), params)
    return sse.frame(method, event, str(seq))


def thread_topic(thread_id: UUID) -> str:
    """Return the topic that announces new runs of a thread."""
    return f"thread:{thread_id.hex}"


class RunStream:
    """The sending side of a stream. Frames of a resumable one are also stored, so clients can read them later."""

    def __init__(
        self,
        run_id: UUID,
        bus: Bus,
        frames: FrameStore,
        *,
        resumable: bool,
        frame: Callable[[str, bytes, str], bytes] = plain_frame,
    ) -> None:
        self._run_id = run_id
        self._topic = topic(run_id)
        self._bus = bus
        self._frames = frames
        self._resumable = resumable
        self._frame = frame
        self._last: Position = BEGINNING
        self._written: list[asyncio.Future[None]] = []

    @property
    def is_kept(self) -> bool:
        """True if frames can be read again."""
        return self._resumable

    @property
    def is_wanted(self) -> bool:
        """True if anybody follows, or can read the frames later. Otherwise no frames need to be made."""
        return self._resumable or self._bus.has_followers(self._topic)

    def send(self, event: str, data: bytes) -> None:
        if not self._resumable:
            self._bus.publish(self._topic, sse.frame(event, data))
            return
        millis = max(self._last[0], time.time_ns() // 1_000_000)
        number = self._last[1] + 1 if millis == self._last[0] else 0
        if number == _NUMBERS:
            millis, number = millis + 1, 0
        self._last = (millis, number)
        frame = self._frame(event, data, f"{millis}-{number}")
        self._bus.publish(self._topic, frame)
        self._written.append(self._frames.put(self._run_id, millis, number, frame))

    async def flush(self) -> None:
        """Wait until all sent frames are durable."""
        written, self._written = self._written, []
        await asyncio.gather(*written)

    def close(self, result: bytes | None) -> None:
        """Close the stream. Without a result the run has not ended but will continue elsewhere or later, and its
        followers keep following.
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


def id_in(frame: bytes) -> Position | None:
    """Return the position of a frame; None if its run keeps no frames."""
    _, found, rest = frame.rpartition(b"\r\nid: ")
    return position_of(rest.rstrip().decode()) if found else None


def _position_in(frame: bytes) -> Position:
    return id_in(frame) or BEGINNING


def _later(frames: list[bytes], after: Position) -> list[bytes]:
    """Return the frames later than `after`. Frames arrive in order, so usually the first one decides for all."""

    def is_later(frame: bytes) -> bool:
        position = id_in(frame)
        return position is None or position > after

    return frames if not frames or is_later(frames[0]) else [frame for frame in frames if is_later(frame)]


class StreamReader:
    """The reading side of streams: kept frames, then live ones."""

    def __init__(self, runs: RunStore, frames: FrameStore, bus: Bus, live: LiveRuns) -> None:
        self._runs = runs
        self._frames = frames
        self._bus = bus
        self._live = live

    def follow(self, run_id: UUID) -> AbstractContextManager[Follower]:
        """Return a follower of the frames. Enter it before the run starts, or the first frames are lost."""
        return self._bus.follow(topic(run_id))

    def follow_result(self, run_id: UUID) -> AbstractContextManager[Follower]:
        """Return a follower of the result."""
        return self._bus.follow(result_topic(run_id))

    def ask_for_result(self, run_id: UUID) -> None:
        """Have the result sent to this process, wherever the run executes."""
        if not self._live.is_executing(run_id):
            self._bus.ask_others(result_topic(run_id))

    async def live(self, follower: Follower, thread_id: UUID, run_id: UUID, *, resumable: bool) -> sse.Frames:
        """Yield frames until the run ends; an empty list marks silence.

        Raises UnavailableError when frames are missing, so that the gap does not look like the run's end.
        """
        last = BEGINNING
        while True:
            frames = await follower.read(sse.HEARTBEAT_S)
            self._check_for_loss(follower, run_id)
            if frames:
                if resumable:
                    last = _position_in(frames[-1])
                yield frames
            elif follower.closed:
                return
            elif await self._has_ended(thread_id, run_id):
                if resumable:
                    async for kept in self._kept(run_id, last):
                        yield kept
                return
            else:
                yield []

    def _check_for_loss(self, follower: Follower, run_id: UUID) -> None:
        if follower.overrun:
            raise UnavailableError("The reader is too slow, or the server stops")
        if follower.gap and not self._live.is_executing(run_id):
            raise UnavailableError("What another process sent was lost")

    async def join(
        self, thread_id: UUID, run_id: UUID, *, after: Position | None, resumable: bool, modes: frozenset[str] | None
    ) -> sse.Frames:
        """Yield kept frames later than `after` (none if None), then later live ones; an empty list marks silence."""
        with self.follow(run_id) as follower:
            if resumable and after is not None:
                frames = self._since(after, follower, thread_id, run_id)
            else:
                frames = self._from_now_on(follower, thread_id, run_id)
            async for some in frames:
                wanted = [frame for frame in some if _is_of(frame, modes)]
                if wanted or not some:
                    yield wanted

    async def kept_and_live(self, thread_id: UUID, run_id: UUID, after: Position) -> AsyncIterator[list[bytes]]:
        """Yield the kept frames of a run later than `after`, then live ones until it ends; an empty list marks silence.
        A run that keeps no frames has only live ones, without ids.
        """
        with self.follow(run_id) as follower:
            async for frames in self._since(after, follower, thread_id, run_id):
                yield frames

    async def _since(
        self, after: Position, follower: Follower, thread_id: UUID, run_id: UUID
    ) -> AsyncIterator[list[bytes]]:
        """Yield every frame later than `after`; an empty list marks silence."""
        # Checked after following: a run that has ended before leaves kept frames only.
        ended = await self._has_ended(thread_id, run_id)
        has_gap = not self._live.is_executing(run_id)
        if has_gap:
            self._bus.ask_others(topic(run_id))
        else:  # frames published before we followed must be stored before we read
            await self._frames.all_written()
        async for frames in self._kept(run_id, after):
            after = _position_in(frames[-1])
            yield frames
        if ended:
            return
        async for frames in self._live_frames(follower, thread_id, run_id):
            if frames and has_gap and id_in(frames[0]):
                async for kept in self._kept_up_to(frames[0], run_id, after):
                    after = _position_in(kept[-1])
                    yield kept
                has_gap = False
            later = _later(frames, after)
            if later or not frames:
                yield later
            after = max(after, _position_in(later[-1])) if later else after
        async for frames in self._kept(run_id, after):
            yield frames

    async def _from_now_on(self, follower: Follower, thread_id: UUID, run_id: UUID) -> AsyncIterator[list[bytes]]:
        if await self._has_ended(thread_id, run_id):
            return
        if not self._live.is_executing(run_id):
            self._bus.ask_others(topic(run_id))
        async for frames in self._live_frames(follower, thread_id, run_id):
            yield frames

    async def _live_frames(self, follower: Follower, thread_id: UUID, run_id: UUID) -> AsyncIterator[list[bytes]]:
        """Yield live frames until the run ends; an empty list marks silence."""
        while True:
            frames = await follower.read(sse.HEARTBEAT_S)
            self._check_for_loss(follower, run_id)
            if not frames and (follower.closed or await self._has_ended(thread_id, run_id)):
                return
            yield frames

    async def _kept(self, run_id: UUID, after: Position) -> AsyncIterator[list[bytes]]:
        """Yield the currently kept frames in pages. Stops at the first short page: otherwise it would race with the
        writer.
        """
        is_last = False
        while not is_last and (page := await self._frames.page(run_id, after)):
            is_last = len(page) < PAGE_FRAMES
            millis, number, _ = page[-1]
            after = (millis, number)
            yield [frame for _, _, frame in page]

    async def _kept_up_to(self, frame: bytes, run_id: UUID, after: Position) -> AsyncIterator[list[bytes]]:
        """Yield kept frames until `frame` is among them. Frames are stored in order, so all earlier ones are then
        stored too, including those that another process published before it heard that we follow.
        """
        position, give_up_at = _position_in(frame), time.monotonic() + _KEPT_S_MAX
        while after < position and time.monotonic() < give_up_at:
            async for kept in self._kept(run_id, after):
                after = _position_in(kept[-1])
                yield kept
            await asyncio.sleep(_LOOK_S if after < position else 0)

    async def _has_ended(self, thread_id: UUID, run_id: UUID) -> bool:
        try:
            end = await self._runs.read_end(thread_id, run_id)
        except UnavailableError:
            return False  # unknown now; a lost run is taken up again when the database is back
        return end is None or end["status"] in ENDED


def _is_of(frame: bytes, modes: frozenset[str] | None) -> bool:
    """Return True if the frame belongs to one of the modes. Errors and feedback links belong to all."""
    if modes is None:
        return True
    event = sse.event_of(frame).partition("|")[0].partition("/")[0]
    return event in modes or event in ("error", "feedback")
