"""The agents room: the objects that its routes need, built by `wiring`."""

from __future__ import annotations

from dataclasses import dataclass

from moorage.agents.assistants import Assistants
from moorage.agents.commands import Commands
from moorage.agents.crons import Crons
from moorage.agents.graphs import Graphs
from moorage.agents.items import Items
from moorage.agents.metrics import AgentMetrics
from moorage.agents.runs import Runs
from moorage.agents.state import States
from moorage.agents.thread_stream import ThreadStreams
from moorage.agents.threads import Threads
from moorage.kernel.postgres import Postgres


@dataclass(frozen=True)
class Agents:
    postgres: Postgres
    graphs: Graphs
    assistants: Assistants
    threads: Threads
    states: States
    runs: Runs
    crons: Crons
    items: Items
    metrics: AgentMetrics
    commands: Commands
    thread_streams: ThreadStreams
