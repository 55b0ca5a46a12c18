"""Runs: create, follow, await and cancel them. The worker executes them (`execute.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from typing import Any, Protocol
from uuid import UUID

from moorage.agents.frames import failure_of
from moorage.agents.graphs import Graphs
from moorage.agents.live import LiveRuns
from moorage.agents.metrics import Figures
from moorage.agents.principals import Principal, Sent
from moorage.agents.records.assistants import system_assistant_id
from moorage.agents.records.filters import EVERYTHING, Filter
from moorage.agents.records.runs import (
    ENDED,
    CancelAction,
    MultitaskStrategy,
    Run,
    RunBatch,
    RunCreateStateless,
    RunsCancel,
    RunStatus,
)
from moorage.agents.records.users import User
from moorage.agents.run_requests import asked_run, new_run
from moorage.agents.store.new_runs import NewRun
from moorage.agents.store.runs import Created, LeasedRun, RunStore
from moorage.agents.store.threads import ThreadStore
from moorage.agents.stream import BEGINNING, StreamReader, position_of, result_topic, thread_topic, topic
from moorage.agents.webhooks import WebhookPolicy
from moorage.http import sse
from moorage.kernel.bus import Bus, Follower
from moorage.kernel.encoding import encode
from moorage.kernel.errors import ConflictError, InvalidRequestError, NotFoundError, UnavailableError
from moorage.kernel.ids import uuid7

# How often to read the row of a run that does not execute here, while somebody waits for its result.
_POLL_S = 0.5
# How long to wait for the result of a run whose row is gone: it has just ended, and its result is on its way, unless
# the run was deleted.
_LATE_S = 3.0
# How long to wait for a cancellation to take effect without `wait`, so that a client that asks next sees the run's end.
_STOPPED_S = 1.0
_GONE = encode({"__error__": {"error": "HTTPException", "message": "404: Run not found"}})


# Strategies that end the older runs of a thread, and how.
_MAKE_WAY: dict[MultitaskStrategy, CancelAction] = {"interrupt": "interrupt", "rollback": "rollback"}
_CANCELLABLE = {
    "pending": [RunStatus.PENDING],
    "running": [RunStatus.RUNNING],
    "all": [RunStatus.PENDING, RunStatus.RUNNING],
}


class Slots(Protocol):
    """The worker of this process, as the verbs see it."""

    name: str
    lease_s: float

    @property
    def has_free_slot(self) -> bool: ...

    def take(self, row: LeasedRun) -> None: ...

    def wake(self) -> None: ...


class Runs:
    def __init__(
        self,
        *,
        runs: RunStore,
        threads: ThreadStore,
        graphs: Graphs,
        live: LiveRuns,
        bus: Bus,
        reader: StreamReader,
        slots: Slots,
        webhooks: WebhookPolicy | None,
        figures: Figures,
    ) -> None:
        self._runs = runs
        self._threads = threads
        self._graphs = graphs
        self._live = live
        self._bus = bus
        self._reader = reader
        self._slots = slots
        self._webhooks = webhooks
        self._figures = figures
        self._system_assistants = frozenset(map(system_assistant_id, graphs.ids))

    async def create(self, who: Principal, thread_id: UUID | None, new: RunCreateStateless, sent: Sent) -> Run:
        """Accept the run. When this returns, the run is durable, and already started if possible."""
        return self._start(await self._accept(who, thread_id, uuid7(), new, sent))

    async def create_and_stream(
        self, who: Principal, thread_id: UUID | None, new: RunCreateStateless, sent: Sent
    ) -> tuple[Run, sse.Frames]:
        """Accept the run. Returns it with all of its frames; an empty list marks silence."""
        run_id = uuid7()
        with ExitStack() as stack:
            follower = stack.enter_context(self._reader.follow(run_id))
            run = self._start(await self._accept(who, thread_id, run_id, new, sent, followed=True))
            held = stack.pop_all()
        frames = self._reader.live(follower, run["thread_id"], run_id, resumable=new.stream_resumable)
        return run, self._released(frames, held, run, cancels=new.on_disconnect == "cancel")

    async def create_and_wait(
        self, who: Principal, thread_id: UUID | None, new: RunCreateStateless, sent: Sent
    ) -> tuple[Run, Coroutine[Any, Any, bytes]]:
        """Accept the run. Returns it with an awaitable of its result as JSON: the last values, or `__error__`.

        The result shows the thread's values, so handlers are also asked whether the user may read them.
        """
        run_id = uuid7()
        await who.may("threads", "read", {"thread_id": thread_id, "run_id": run_id})
        with ExitStack() as stack:
            follower = stack.enter_context(self._reader.follow_result(run_id))
            run = self._start(await self._accept(who, thread_id, run_id, new, sent, followed=True))
            held = stack.pop_all()
        return run, self._result(run["thread_id"], run_id, follower, held, cancels=new.on_disconnect == "cancel")

    async def get(self, who: Principal, thread_id: UUID, run_id: UUID) -> Run:
        run = await self._runs.read(thread_id, run_id, await self._may_read(who, thread_id, run_id))
        if run is None:
            raise NotFoundError("Not Found")
        return run

    async def page(
        self,
        who: Principal,
        thread_id: UUID,
        *,
        status: RunStatus | None,
        limit: int,
        offset: int,
        select: list[str] | None,
    ) -> list[dict[str, Any]]:
        """Return the newest runs first, and one row more than requested if there are more."""
        value = {"thread_id": thread_id, "metadata": {}, "status": status, "limit": limit, "offset": offset}
        seen = await who.may("threads", "search", value)
        if not await self._threads.exists(thread_id, seen):
            raise NotFoundError(f"Thread with ID {thread_id} not found")
        return await self._runs.page(thread_id, seen, status=status, limit=limit, offset=offset, select=select)

    async def delete(self, who: Principal, thread_id: UUID, run_id: UUID) -> None:
        """Delete a run. A run under way is stopped; its checkpoints stay on the thread."""
        seen = await who.may("threads", "delete", {"thread_id": thread_id, "run_id": run_id})
        if not await self._runs.remove(thread_id, run_id, seen):
            raise NotFoundError("Run not found")
        self._interrupt(run_id, "interrupt")

    async def join(self, who: Principal, thread_id: UUID, run_id: UUID, *, cancels: bool) -> Coroutine[Any, Any, bytes]:
        """Return an awaitable of an existing run's result. A missing run is reported in the body."""
        seen = await self._may_read(who, thread_id, run_id)
        return self._joined(seen, thread_id, run_id, cancels=cancels)

    async def _joined(self, seen: Filter, thread_id: UUID, run_id: UUID, *, cancels: bool) -> bytes:
        if seen != EVERYTHING and await self._runs.read(thread_id, run_id, seen) is None:
            return _GONE
        with ExitStack() as stack:
            follower = stack.enter_context(self._reader.follow_result(run_id))
            self._reader.ask_for_result(run_id)
            if (result := await self._result_by_now(thread_id, run_id, follower)) is not None:
                return result
            held = stack.pop_all()
        return await self._result(thread_id, run_id, follower, held, cancels=cancels)

    async def _may_read(self, who: Principal, thread_id: UUID, run_id: UUID) -> Filter:
        return await who.may("threads", "read", {"thread_id": thread_id, "run_id": run_id})

    async def thread_of(self, run_id: UUID) -> UUID:
        """Return the thread of a run that was created without one, since its client knows only the run's id."""
        thread_id = await self._runs.thread_of(run_id)
        if thread_id is None:
            raise NotFoundError("Run not found")
        return thread_id

    async def join_stream(
        self,
        who: Principal,
        thread_id: UUID,
        run_id: UUID,
        *,
        last_event_id: str | None,
        modes: frozenset[str] | None,
        cancels: bool,
    ) -> sse.Frames:
        """Return the frames of an existing run: kept ones since `last_event_id`, then live ones; an empty list marks
        silence. A missing run is reported in a frame.
        """
        run = await self._runs.read(thread_id, run_id, await self._may_read(who, thread_id, run_id))
        if run is None:
            return _missing_run()
        after = BEGINNING if last_event_id is None else position_of(last_event_id)
        frames = self._reader.join(thread_id, run_id, after=after, resumable=run["kwargs"]["resumable"], modes=modes)
        return self._released(frames, ExitStack(), run, cancels=cancels)

    async def cancel(self, who: Principal, thread_id: UUID, run_id: UUID, action: CancelAction, *, wait: bool) -> None:
        """Stop a run. With `wait`, returns when the run has ended; without, waits for its end only for a moment.

        Raises NotFoundError for a run that is not active.
        """
        seen = await who.may("threads", "update", {"thread_id": thread_id, "run_id": run_id, "action": action})
        with self._reader.follow_result(run_id) as follower:
            self._reader.ask_for_result(run_id)
            found = await self._runs.cancel(thread_id, [run_id], action, seen)
            if not found:
                raise NotFoundError("No runs found to cancel.")
            await self._tell(thread_id, found, action)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wait else _STOPPED_S):
                    await self._result(thread_id, run_id, follower, ExitStack(), cancels=False)

    async def stop_all(self) -> None:
        """Interrupt every run that executes in this process."""
        await self._live.stop_all()

    async def cancel_many(self, who: Principal, request: RunsCancel, action: CancelAction) -> None:
        """Stop all runs of a status, or the named runs of a thread. Raises NotFoundError if there were none."""
        named = {} if request.thread_id is None else {"thread_id": request.thread_id, "run_ids": request.run_ids}
        seen = await who.may("threads", "update", {**named, "action": action})
        wanted: dict[UUID, list[UUID]] = {}
        if request.status is not None:
            wanted = await self._runs.with_status(_CANCELLABLE[request.status], seen)
        elif request.thread_id is not None:
            wanted = {request.thread_id: request.run_ids or []}
        cancelled: dict[UUID, RunStatus] = {}
        for thread_id, run_ids in wanted.items():
            found = await self._runs.cancel(thread_id, run_ids, action, seen)
            await self._tell(thread_id, found, action)
            cancelled |= found
        if not cancelled:
            raise NotFoundError("No matching runs to cancel. They may not exist, or have ended already.")
        await self._live.wait(cancelled, _STOPPED_S)

    async def create_batch(self, who: Principal, batch: RunBatch, sent: Sent) -> list[Run]:
        """Accept all of the runs, or none."""
        for new in batch.root:
            await self.check(new)
        news = [await self._new_run(who, None, uuid7(), new, sent) for new in batch.root]
        made = await self._runs.create_all(news)
        if any(created.missing for created in made):
            raise NotFoundError("Thread or assistant not found.")
        return [self._start(created) for created in made]

    async def allow(self, who: Principal, thread_id: UUID | None, new: RunCreateStateless, sent: Sent) -> NewRun:
        """Return the row of a run that the user may start. Raises InvalidRequestError, and the refusals of handlers."""
        return await self._new_run(who, thread_id, uuid7(), new, sent)

    def prepare(self, user: User | None, thread_id: UUID | None, new: RunCreateStateless, sent: Sent) -> NewRun:
        """Make the row of a run for a user who may start it; the caller inserts it. Raises InvalidRequestError."""
        asked = asked_run(thread_id, uuid7(), self.assistant_id(new.assistant_id), new, sent)
        return new_run(
            Principal(user),
            asked,
            new,
            EVERYTHING,
            EVERYTHING,
            tells=self._webhooks is not None,
            ttl=self._threads.default_ttl,
        )

    async def begin(self, created: Created, strategy: MultitaskStrategy) -> None:
        """Start a run whose row is already in the queue."""
        await self._make_way(created, strategy)
        self._start(created)

    # --- accepting runs -------------------------------------------------------------------------------------------

    async def _accept(
        self,
        who: Principal,
        thread_id: UUID | None,
        run_id: UUID,
        new: RunCreateStateless,
        sent: Sent,
        *,
        followed: bool = False,
    ) -> Created:
        """Insert the run as a durable row. Raises NotFoundError, ConflictError or InvalidRequestError, and then changes
        nothing.
        """
        await self.check(new)
        wanted = await self._new_run(who, thread_id, run_id, new, sent, followed=followed)
        strategy = wanted.strategy
        created = await self._runs.create(
            wanted, worker=self._slots.name, lease_s=self._slots.lease_s, start=self._slots.has_free_slot
        )
        if created.missing:
            raise NotFoundError("Thread or assistant not found.")
        if created.refused:
            raise ConflictError(
                "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."
            )
        await self._make_way(created, strategy)
        return created

    async def _make_way(self, created: Created, strategy: MultitaskStrategy) -> None:
        """End the older runs of the thread, if the strategy says so."""
        if strategy in _MAKE_WAY and created.leased is None:
            await self._cancel_older(_run_of(created)["thread_id"])

    async def check(self, new: RunCreateStateless) -> None:
        """Raise InvalidRequestError if the webhook's address is not allowed."""
        if new.webhook is not None and self._webhooks is not None:
            await self._webhooks.check(new.webhook)

    async def _new_run(
        self,
        who: Principal,
        thread_id: UUID | None,
        run_id: UUID,
        new: RunCreateStateless,
        sent: Sent,
        *,
        followed: bool = False,
    ) -> NewRun:
        asked = asked_run(thread_id, run_id, self.assistant_id(new.assistant_id), new, sent)
        seen = await who.may("threads", "create_run", asked)
        assistants_seen = await self._assistants_seen(who, asked["assistant_id"])
        tells = self._webhooks is not None
        return new_run(
            who, asked, new, seen, assistants_seen, followed=followed, tells=tells, ttl=self._threads.default_ttl
        )

    async def _assistants_seen(self, who: Principal, assistant_id: UUID) -> Filter:
        """Return the filter of assistants that the user may run. Running an assistant uses its configuration, so the
        user needs the right to read it. System assistants need no right: a user who may create runs may run the
        project's graphs.
        """
        if assistant_id in self._system_assistants:
            return EVERYTHING
        return await who.may("assistants", "read", {"assistant_id": assistant_id, "metadata": {}})

    async def _cancel_older(self, thread_id: UUID) -> None:
        """Cancel everything that is under way on the thread and older than the newest run that others make way for.

        That is not always the run just created: of runs that are created at the same time, a newer one may be stored
        first, before it could see the older one.
        """
        active = await self._runs.active(thread_id)
        actions = {run_id: _MAKE_WAY[strategy] for run_id, strategy in active.items() if strategy in _MAKE_WAY}
        if actions:
            newest = max(actions)
            older, action = [run_id for run_id in active if run_id < newest], actions[newest]
            await self._tell(thread_id, await self._runs.cancel(thread_id, older, action), action)

    async def _tell(self, thread_id: UUID, cancelled: dict[UUID, RunStatus], action: CancelAction) -> None:
        """Stop the cancelled runs that execute here. For runs that never started, send the result to those who wait."""
        for run_id, status in cancelled.items():
            if status == RunStatus.RUNNING:
                self._interrupt(run_id, action)
            else:
                self._bus.publish(result_topic(run_id), await self._stored_result(thread_id, run_id) or b"{}")
                self._bus.close_topic(topic(run_id))
        self._slots.wake()

    def _interrupt(self, run_id: UUID, action: CancelAction) -> None:
        if not self._live.interrupt(run_id, action):
            self._bus.signal("cancel", f"{run_id} {action}")

    def _start(self, created: Created) -> Run:
        if created.leased is not None:
            self._slots.take(created.leased)
        else:
            self._slots.wake()
            self._bus.signal("wake", "runs")
        run = _run_of(created)
        self._bus.publish(thread_topic(run["thread_id"]), b"")  # followers of the thread look for the new run now
        return run

    def assistant_id(self, name: str) -> UUID:
        """Return the id of an assistant given by id or by graph name. Raises InvalidRequestError."""
        if name in self._graphs:
            return system_assistant_id(name)
        try:
            return UUID(name)
        except ValueError:
            raise InvalidRequestError(
                f"Invalid assistant: '{name}'. Must be either:\n- A valid assistant UUID, or\n"
                f"- One of the registered graphs: {', '.join(sorted(self._graphs.ids))}"
            ) from None

    # --- frames and results ---------------------------------------------------------------------------------------

    async def _released(self, frames: sse.Frames, held: ExitStack, run: Run, *, cancels: bool) -> sse.Frames:
        """Pass the frames on, and close `held` after the last one. With `cancels`, a client that disconnects cancels
        the run.
        """
        with held:
            self._figures.streams_open += 1
            try:
                async for some in frames:
                    yield some
            except (GeneratorExit, asyncio.CancelledError):
                if cancels:
                    await self._cancel_quietly(run["thread_id"], run["run_id"])
                raise
            finally:
                self._figures.streams_open -= 1

    async def _result(
        self, thread_id: UUID, run_id: UUID, follower: Follower, held: ExitStack, *, cancels: bool
    ) -> bytes:
        """Wait for the result as JSON. Reads the row now and then, in case the process that should send the result has
        died.
        """
        with held:
            try:
                while not (results := await follower.read(_POLL_S)):
                    if follower.overrun:
                        raise UnavailableError("The server stops; the run goes on later")
                    if not self._live.is_executing(run_id):
                        stored = await self._result_by_now_if_known(thread_id, run_id, follower)
                        if stored is not None:
                            return stored
                    if follower.closed:
                        await asyncio.sleep(_POLL_S)
            except asyncio.CancelledError:
                if cancels:
                    await self._cancel_quietly(thread_id, run_id)
                raise
            return results[-1]

    async def _result_by_now_if_known(self, thread_id: UUID, run_id: UUID, follower: Follower) -> bytes | None:
        """Return the result, or None while the database is away, so that callers who are waiting continue to wait."""
        try:
            return await self._result_by_now(thread_id, run_id, follower, late_s=_LATE_S)
        except UnavailableError:
            return None

    async def _result_by_now(
        self, thread_id: UUID, run_id: UUID, follower: Follower, *, late_s: float = _POLL_S
    ) -> bytes | None:
        """Return the result if the run has ended. A stateless run's row is deleted at its end. If the row is gone, the
        result has arrived or is on its way, so wait up to `late_s` for it.
        """
        stored = await self._stored_result(thread_id, run_id)
        if stored == _GONE and (late := await follower.read(late_s)):
            return late[-1]
        return stored

    async def _stored_result(self, thread_id: UUID, run_id: UUID) -> bytes | None:
        """Return the result in the database; None while the run has none."""
        end = await self._runs.read_end(thread_id, run_id)
        if end is None:
            return _GONE
        if end["status"] not in ENDED:
            return None
        if end["error"]:
            return encode({"__error__": end["error"]})
        return encode({} if end["values"] is None else end["values"])

    async def _cancel_quietly(self, thread_id: UUID, run_id: UUID) -> None:
        await self._tell(thread_id, await self._runs.cancel(thread_id, [run_id], "interrupt"), "interrupt")


async def _missing_run() -> sse.Frames:
    failure = failure_of(RuntimeError("404: Run not found"))
    yield [sse.frame("error", encode({**failure, "error": "HTTPException"}))]


def _run_of(created: Created) -> Run:
    assert created.run is not None
    return created.run
