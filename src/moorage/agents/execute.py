"""The worker's job: execute a leased run, stream its output, and record how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import structlog
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import StateSnapshot

from moorage.agents.checkpoints import RunSaver
from moorage.agents.feedback import FeedbackLinks
from moorage.agents.frames import Emitted, FrameMaker, PrivateErrors, encode_output, failure_of, graph_modes
from moorage.agents.graphs import Graph, Graphs, output_of
from moorage.agents.invocation import Invocation, invocation_of, opening_config, read_config
from moorage.agents.live import LiveRuns
from moorage.agents.metrics import Figures
from moorage.agents.protocol_events import ProtocolMaker, protocol_parts
from moorage.agents.records.protocol import PROTOCOL
from moorage.agents.records.runs import CANCELLED, CancelAction, RunFailure, RunStatus
from moorage.agents.records.threads import ThreadStatus
from moorage.agents.state import interrupts_of
from moorage.agents.store.checkpoints import CheckpointStore
from moorage.agents.store.frames import FrameStore
from moorage.agents.store.runs import LeasedRun, RunEnd, RunStore
from moorage.agents.store.threads import ThreadStore
from moorage.agents.stream import RunStream, plain_frame, protocol_frame, result_topic, thread_topic, topic
from moorage.kernel.bus import Bus
from moorage.kernel.encoding import encode
from moorage.kernel.errors import UnavailableError
from moorage.kernel.group_commit import GroupCommit
from moorage.worker.leases import Lease

log = structlog.get_logger(__name__)

# One part of a graph's stream: namespace of the subgraph, mode, chunk.
Part = tuple[tuple[str, ...], str, Any]
_TIMED_OUT: RunFailure = {"error": "TimeoutError", "message": "The run took longer than BG_JOB_TIMEOUT_SECS allows."}


class RunQueue:
    """The agent runs of the database as rows with leases, and their execution."""

    def __init__(
        self,
        *,
        runs: RunStore,
        frames: FrameStore,
        threads: ThreadStore,
        checkpoints: CheckpointStore,
        commits: GroupCommit,
        graphs: Graphs,
        bus: Bus,
        live: LiveRuns,
        feedback: FeedbackLinks,
        figures: Figures,
        wake_webhooks: Callable[[], None],
        attempts_max: int,
        timeout_s: float,
        frames_keep_s: float,
        start_apart: Callable[[], None] | None,
    ) -> None:
        self.runs = runs
        self.frames = frames
        self.threads = threads
        self.checkpoints = checkpoints
        self.commits = commits
        self.graphs = graphs
        self.bus = bus
        self.live = live
        self.feedback = feedback
        self.figures = figures
        self._wake_webhooks = wake_webhooks
        self.timeout_s = timeout_s
        self._attempts_max = attempts_max
        self._frames_keep_s = frames_keep_s
        self._start_apart = start_apart

    async def claim(self, worker: str, slots: int, lease_s: float) -> list[LeasedRun]:
        """Claim runs. Runs on their last attempt are left to a process of their own (`apart`), which claims nothing
        else.
        """
        apart = self._start_apart is None
        ids, attempts = self.graphs.ids, self._attempts_max
        return await self.runs.claim(worker, slots, lease_s, ids, attempts_max=attempts, apart=apart)

    async def beat(self, leases: Collection[Lease], lease_s: float) -> Collection[UUID]:
        held = await self.runs.beat(leases, lease_s)
        for run_id, action in held.items():
            if action:  # cancellation that another process requested
                self.live.interrupt(run_id, action)
        return held.keys()

    def beat_from_thread(self, leases: Collection[Lease], lease_s: float) -> None:
        self.runs.beat_from_thread(leases, lease_s)

    def on_cancel(self, signal: str) -> None:
        """Handle `<run id> <action>`: a cancellation that another process has written to the row."""
        run_id, _, action = signal.partition(" ")
        self.live.interrupt(UUID(run_id), "rollback" if action == "rollback" else "interrupt")

    async def reap(self) -> int:
        await self.frames.sweep(self._frames_keep_s)
        reaped = await self.runs.reap(self._attempts_max)
        if self._start_apart and await self.runs.waits_apart(self._attempts_max, self.graphs.ids):
            self._start_apart()
        return reaped

    async def hand_back(self, leases: Collection[Lease]) -> None:
        await self.runs.hand_back(leases)

    async def execute(self, row: LeasedRun) -> bool:
        run_id = row.lease.key
        kwargs = row.run["kwargs"]
        stream = RunStream(
            run_id,
            self.bus,
            self.frames,
            # Followers of the thread may reconnect and ask for frames that they missed.
            resumable=kwargs["resumable"] or self.bus.has_followers(thread_topic(row.run["thread_id"])),
            frame=protocol_frame if PROTOCOL in kwargs["stream_mode"] else plain_frame,
        )
        attempt = _Attempt(self, row, stream)
        if row.accepted_by not in (None, row.lease.worker):
            self.bus.expect_followers(topic(run_id))
            self.bus.expect_followers(result_topic(run_id))
        names = {"run_id": str(run_id), "thread_id": str(row.run["thread_id"])}
        if request_id := kwargs.get("request_id"):  # the caller's own id
            names["request_id"] = request_id
        with self.live.executing(run_id), structlog.contextvars.bound_contextvars(**names):
            try:
                await attempt.execute()
                return attempt.others_wait
            finally:
                # Close the stream only now: a client that sees it close asks for the status at once, and must see the
                # final one.
                stream.close(attempt.result)
                if row.run["kwargs"].get("webhook"):
                    self._wake_webhooks()


class _Attempt:
    """One attempt at one run."""

    def __init__(self, queue: RunQueue, row: LeasedRun, stream: RunStream) -> None:
        self._queue = queue
        self._row = row
        self._stream = stream
        self._thread_id = row.run["thread_id"]
        self._run_id = row.lease.key
        modes = row.run["kwargs"]["stream_mode"]
        self._private_errors = PrivateErrors()
        self._maker = (
            ProtocolMaker(row.graph_id, self._private_errors)
            if PROTOCOL in modes
            else FrameMaker(modes, self._private_errors)
        )
        self._values: Any = None
        self._snapshot: StateSnapshot | None = None
        self.result: bytes | None = None  # JSON, as `wait` and `join` return it; None while the run has not ended
        self._emitted = False
        self.others_wait = False  # True: another run of the thread may start now
        # A temporary run leaves nothing behind, so its checkpoints stay in memory; a crash starts it over.
        self._saver: BaseCheckpointSaver[Any] = (
            InMemorySaver() if row.temporary else RunSaver(queue.checkpoints, queue.commits)
        )

    async def execute(self) -> None:
        """Run the graph to its end and record the outcome. A lost lease or a server stop only ends this attempt."""
        if self._row.cancel_action:
            await self._end_cancelled(self._row.cancel_action)
            return
        try:
            async with asyncio.timeout(self._queue.timeout_s) as deadline:
                await self._run_graph()
        except asyncio.CancelledError as error:
            await self._after_cancellation(error)
        except UnavailableError:
            raise  # not the graph's fault: the lease runs out, and the run continues when the database is back
        except Exception as error:
            if deadline.expired():
                await self._end_failed(RunStatus.TIMEOUT, _TIMED_OUT)
            else:
                log.info("run failed", run_id=str(self._run_id), graph=self._row.graph_id, exc_info=error)
                await self._end_failed(RunStatus.ERROR, failure_of(error))

    async def _run_graph(self) -> None:
        self._send(self._maker.started(self._run_id, self._row.lease.attempt))
        invocation = invocation_of(self._row)
        async with self._queue.graphs.open(
            self._row.graph_id,
            "threads.create_run",
            config=invocation.config,
            context=invocation.context,
            saver=self._saver,
            user=invocation.user,
        ) as graph:
            try:
                await self._consume(graph, invocation)
            except BaseException:
                # Read while the graph is open: every outcome stores the state. An error here must not replace the
                # original one.
                try:
                    await self._take_snapshot(graph)
                except Exception as error:
                    log.warning("the state of a failed run cannot be read", run_id=str(self._run_id), error=str(error))
                raise
            self._tell_interrupts(await self._take_snapshot(graph))
        await self._end_well()

    async def _take_snapshot(self, graph: Graph) -> StateSnapshot:
        snapshot = self._snapshot = await graph.aget_state(read_config(self._thread_id))
        if self._values is None:  # no stream mode asked for them during the run
            self._values = output_of(graph, snapshot)
        return snapshot

    async def _consume(self, graph: Graph, invocation: Invocation) -> None:
        """Send the graph's output to the stream, and keep the last values."""
        async with aclosing(self._parts(graph, invocation)) as parts:
            async for namespace, mode, chunk in parts:
                self._emit(mode, namespace, chunk)

    def _emit(self, mode: str, namespace: tuple[str, ...], chunk: Any) -> None:
        if not self._emitted:
            self._emitted = True
            waited = datetime.now(UTC) - self._row.run["created_at"]
            self._queue.figures.first_event(max(0.0, waited.total_seconds()))
        if mode == "values" and not namespace:
            self._values = self._maker.values_of(chunk)
        if self._stream.is_wanted:
            self._send(self._maker.frames(mode, namespace, chunk))

    def _send(self, emitted: Iterable[Emitted]) -> None:
        for event, data in emitted:
            self._stream.send(event, data)

    def _tell_interrupts(self, snapshot: StateSnapshot) -> None:
        """Add waiting interrupts to the last values. Newer versions of LangGraph do this; the oldest supported one does
        not.
        """
        if isinstance(self._maker, ProtocolMaker):
            return
        waiting = [interrupt for task in snapshot.tasks for interrupt in task.interrupts]
        if waiting and isinstance(self._values, dict) and "__interrupt__" not in self._values:
            self._emit("values", (), {**self._values, "__interrupt__": waiting})

    async def _parts(self, graph: Graph, invocation: Invocation) -> AsyncGenerator[Part, None]:
        """Yield the parts that the graph emits. In mode `events`, LangChain's events carry the other modes."""
        kwargs = self._row.run["kwargs"]
        given, config = await self._input(invocation), invocation.config
        if isinstance(self._maker, ProtocolMaker) or "tools" in kwargs["stream_mode"]:
            config = {**config, "callbacks": [self._private_errors]}
        if isinstance(self._maker, ProtocolMaker):
            options = {"context": invocation.context_for(graph), "durability": invocation.durability}
            async with aclosing(protocol_parts(graph, given, config, options)) as parts:
                async for part in parts:
                    yield part
            return
        if self._stream.is_kept:
            # Otherwise LangGraph emits a step only after its checkpoint is saved, and a crash in between loses these
            # frames.
            graph.stream_eager = True
        options = {
            "context": invocation.context_for(graph),
            "stream_mode": graph_modes(kwargs["stream_mode"]),
            "interrupt_before": kwargs["interrupt_before"],
            "interrupt_after": kwargs["interrupt_after"],
            "durability": invocation.durability,
            "subgraphs": kwargs["subgraphs"],
        }
        if "events" not in kwargs["stream_mode"]:
            chunks = cast(AsyncGenerator[Any, None], graph.astream(given, config, **options))
            async with aclosing(chunks) as stream:
                async for part in stream:
                    yield cast(Part, part if kwargs["subgraphs"] else ((), *part))
            return
        root = str(self._run_id)
        async for event in graph.astream_events(given, config, version="v2", **options):
            yield (), "events", event
            if event["event"] == "on_chain_stream" and event["run_id"] == root:
                chunk = event["data"]["chunk"]
                yield cast(Part, chunk if kwargs["subgraphs"] else ((), *chunk))

    async def _input(self, invocation: Invocation) -> Any:
        """Return the input, or None if an earlier attempt has saved a checkpoint: the run continues from there."""
        resumes = self._row.lease.attempt > 1 and not self._row.temporary
        if resumes and await self._queue.checkpoints.has_checkpoint_of(str(self._thread_id), str(self._run_id)):
            return None
        return invocation.input

    # --- outcomes -------------------------------------------------------------------------------------------------

    async def _end_well(self) -> None:
        status: ThreadStatus = "interrupted" if self._snapshot and self._snapshot.next else "idle"
        values = encode_output(self._values)  # no JSON form: the run fails before it is a success
        await self._send_feedback_links()
        await self._end(RunStatus.SUCCESS, None, status, None, values)

    async def _send_feedback_links(self) -> None:
        """Send the feedback links, the last frame of a stream that asks for them."""
        keys = self._row.run["kwargs"].get("feedback_keys")
        if keys and self._stream.is_wanted and (links := await self._queue.feedback.of(self._run_id, keys)):
            self._stream.send("feedback", encode(links))

    async def _end_failed(self, status: RunStatus, failure: RunFailure) -> None:
        self._send(self._maker.failed(failure))
        await self._end(status, failure, "error", failure, encode({"__error__": failure}))

    async def _after_cancellation(self, error: asyncio.CancelledError) -> None:
        task, action = asyncio.current_task(), self._queue.live.cancelled_by(self._run_id)
        if task is not None and task.cancelling() == 0:
            await self._end_failed(
                RunStatus.ERROR, {"error": "CancelledError", "message": "The graph cancelled itself."}
            )
        elif task is not None and action is not None:
            task.uncancel()
            await self._end_cancelled(action)
        else:
            raise error

    async def _end_cancelled(self, action: CancelAction) -> None:
        failure = CANCELLED[action]
        if action == "interrupt":
            await self._end(RunStatus.INTERRUPTED, None, "interrupted", failure, encode_output(self._values))
        else:
            await self._roll_back(failure)

    async def _roll_back(self, failure: RunFailure) -> None:
        """Leave the thread as it was before the run. Each step is safe to repeat after a crash."""
        values = b"{}"
        if not self._row.temporary:
            await self._queue.checkpoints.remove_run(str(self._thread_id), str(self._run_id))
            values = await self._restore_thread(failure)
        if await self._queue.runs.end_gone(self._row.lease, RunStatus.INTERRUPTED, failure):
            self._queue.figures.runs_ended[RunStatus.INTERRUPTED] += 1
            self.result = values
        self.others_wait = True

    async def _restore_thread(self, failure: RunFailure) -> bytes:
        saver = RunSaver(self._queue.checkpoints, self._queue.commits)
        invocation = invocation_of(self._row)
        async with self._queue.graphs.open(
            self._row.graph_id, "threads.read", config=opening_config(invocation), saver=saver, user=invocation.user
        ) as graph:
            before = await graph.aget_state(read_config(self._thread_id))
        values = encode_output(before.values)
        await self._queue.threads.restore(
            self._thread_id,
            without=self._run_id,
            values=values if before.config["configurable"].get("checkpoint_id") else b"null",
            interrupts=encode_output(interrupts_of(before)),
            status="interrupted" if before.next else "idle",
            error=failure,
        )
        return values

    async def _end(
        self,
        status: RunStatus,
        failure: RunFailure | None,
        thread_status: ThreadStatus,
        thread_error: RunFailure | None,
        result: bytes,
    ) -> None:
        """Record the end of the run and set its result for those who wait. Does neither if another worker now holds the
        run.
        """
        self._send(self._maker.rest())
        await self._stream.flush()
        if self._row.temporary:
            held = await self._queue.runs.end_gone(self._row.lease, status, thread_error)
        else:
            values, interrupts = self._left_behind()
            end = RunEnd(status, failure, thread_status, thread_error, values, interrupts)
            waiting = await self._queue.runs.end(self._row.lease, end)
            held, self.others_wait = waiting is not None, bool(waiting)
        if held:
            self._queue.figures.runs_ended[status] += 1
        if held or await self._queue.runs.thread_of(self._run_id) is None:  # deleted: nobody else will report it
            self.result = result
        else:
            log.warning("run ended after its lease was lost; its end is not written", run_id=str(self._run_id))

    def _left_behind(self) -> tuple[bytes | None, bytes | None]:
        """Return values and interrupts of the thread's state as JSON; None without a snapshot or a JSON form."""
        if self._snapshot is None:
            return None, None
        try:
            return encode_output(self._snapshot.values), encode_output(interrupts_of(self._snapshot))
        except TypeError:
            return None, None
