"""The command line of the fault runs."""

from __future__ import annotations

import argparse
import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable

from tests.exports.kills import exports
from tests.exports.soak import export_turns
from tests.faults.agent_routes import agent_routes
from tests.faults.bad_graphs import bad_graphs
from tests.faults.crons import crons
from tests.faults.deploying import deploy_kills, idle_agents, switches
from tests.faults.engines import postgres, redis
from tests.faults.followers import thread_followers
from tests.faults.full_disk import full_disk
from tests.faults.houses import new_folder
from tests.faults.kills import kills
from tests.faults.listening import listener_cut, listener_kills
from tests.faults.memory import memory
from tests.faults.payloads import big_state, odd_text
from tests.faults.platform_errors import platform_errors
from tests.faults.queues import queue
from tests.faults.reports import Report
from tests.faults.request_costs import hostile_bodies, slow_bodies
from tests.faults.slow_readers import slow_readers
from tests.faults.store import store
from tests.faults.trace_bodies import trace_bodies
from tests.faults.trace_disk import trace_disk
from tests.faults.trace_filters import trace_filters
from tests.faults.trace_kills import trace_kills
from tests.faults.trace_routes import trace_routes
from tests.faults.two_processes import two_processes

RUNS: dict[str, Callable[..., Awaitable[Report]]] = {
    "kills": kills,
    "postgres": postgres,
    "redis": redis,
    "two-processes": two_processes,
    "slow-readers": slow_readers,
    "followers": thread_followers,
    "big-state": big_state,
    "odd-text": odd_text,
    "bad-graphs": bad_graphs,
    "queue": queue,
    "full-disk": full_disk,
    "memory": memory,
    "crons": crons,
    "store": store,
    "agent-routes": agent_routes,
    "trace-kills": trace_kills,
    "trace-disk": trace_disk,
    "trace-bodies": trace_bodies,
    "hostile-bodies": hostile_bodies,
    "slow-bodies": slow_bodies,
    "trace-filters": trace_filters,
    "trace-routes": trace_routes,
    "platform-errors": platform_errors,
    "switches": switches,
    "deploy-kills": deploy_kills,
    "idle-agents": idle_agents,
    "listener-kills": listener_kills,
    "listener-cut": listener_cut,
    "exports": exports,
    "export-turns": export_turns,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("name", choices=RUNS)
    parser.add_argument(
        "--times", type=int, help="how many kills, clients, runs, megabytes or minutes; see docs/soak.md"
    )
    given = parser.parse_args()
    logging.disable(logging.INFO)
    run = RUNS[given.name]
    sizes = {} if given.times is None else {_size_of(run): given.times}
    with new_folder() as folder:
        report = asyncio.run(run(folder, **sizes))
    sys.stdout.write(report.table() + "\n")
    sys.exit(bool(report.wrongs))


def _size_of(run: Callable[..., Awaitable[Report]]) -> str:
    """Return the name of the parameter that `--times` sets: the first keyword parameter of the run."""
    keywords = [p.name for p in inspect.signature(run).parameters.values() if p.kind == p.KEYWORD_ONLY]
    return keywords[0]
