"""Features that work as in the place where a project comes from: rows of docs/compatibility.md, made from results of
tests.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
_AUTH, _OWN = "tests/agents/test_auth.py", "tests/agents/test_own_routes.py"
_JAVASCRIPT = "tests/agents/test_sdk_javascript.py"
_CRONS, _ITEMS = "tests/agents/test_crons.py", "tests/agents/test_items.py"

# From a feature to the tests that show it: a file, or functions of one.
ROWS: dict[str, list[str]] = {
    "`auth`: parameters of `authenticate` by name, synchronous and asynchronous": [
        f"{_AUTH}::test_a_handler_is_given_what_it_asks_for_by_name",
        f"{_AUTH}::test_a_synchronous_handler_blocks_nobody_else",
    ],
    "`auth`: the most specific `on` handler decides": [f"{_AUTH}::test_the_most_specific_handler_decides"],
    "`auth`: filters (`$eq`, `$contains`, `$and`, `$or`)": [f"{_AUTH}::test_a_filter_means_the_same_in_sql"],
    "`auth`: every operation, by its owner, another user and nobody": ["tests/agents/test_auth_matrix.py"],
    "`auth`: 401 and 403 in the handler's words": [
        f"{_AUTH}::test_nobody_is_let_in_without_a_token",
        f"{_AUTH}::test_refusals_have_the_words_of_the_handler",
    ],
    "`auth`: the user in `config`, `runtime` and `context` of graphs, and in factories": [
        f"{_AUTH}::test_the_user_reaches_the_graph_and_cannot_be_forged",
        f"{_AUTH}::test_a_factory_is_told_the_user_for_runs_and_for_reads",
    ],
    "`auth.disable_studio_auth`, `StudioUser`": [f"{_AUTH}::test_studio_is_let_in_by_a_key_of_the_platform"],
    "`auth.cache`": [f"{_AUTH}::test_a_user_is_remembered_by_the_named_headers"],
    "`auth.openapi`": [f"{_AUTH}::test_the_document_says_how_callers_authenticate"],
    "`auth`: tokens of an issuer, by the Python and the JavaScript SDK": ["tests/agents/test_auth_jwt.py"],
    "`http.app`: routes, lifespan and middleware": [
        f"{_OWN}::test_own_routes_have_their_lifespan_and_come_before_the_servers",
        f"{_OWN}::test_own_middleware_is_around_the_servers_operations",
        f"{_OWN}::test_any_asgi_application_is_asked_first",
    ],
    "`http.middleware_order`, `http.enable_custom_route_auth`": [
        f"{_AUTH}::test_own_routes_ask_for_a_user_where_they_shall_and_see_who_it_is"
    ],
    "`http.configurable_headers`": [f"{_OWN}::test_headers_reach_the_configuration_of_a_run_as_the_rules_say"],
    "`http.logging_headers`": [f"{_OWN}::test_headers_are_logged_as_the_rules_say_and_never_a_credential"],
    "`http.cors`": [f"{_OWN}::test_pages_of_the_named_origins_may_call"],
    "`http.disable_*`": [f"{_OWN}::test_what_is_switched_off_is_not_there"],
    "`http.mount_prefix`": [f"{_OWN}::test_everything_is_below_the_prefix_and_nothing_beside_it"],
    "crons: schedules, time zones and changes of clocks": [
        f"{_CRONS}::test_a_daily_time_fires_once_a_day_also_where_clocks_change",
        f"{_CRONS}::test_what_repeats_within_hours_goes_on_by_real_time",
    ],
    "crons: with and without a thread, `on_run_completed`, by the Python SDK": [
        f"{_CRONS}::test_a_cron_of_a_thread_runs_on_it_again_and_again_until_it_is_deleted",
        f"{_CRONS}::test_a_cron_without_a_thread_keeps_or_deletes_the_thread_of_each_run",
        f"{_CRONS}::test_crons_are_searched_counted_and_changed",
    ],
    "crons: each time fires once, with several servers and after kill -9": [
        f"{_CRONS}::test_each_second_fires_once_in_two_processes_of_which_one_is_killed",
        f"{_CRONS}::test_times_that_passed_while_no_server_lived_fire_once",
    ],
    "store: the tests that LangGraph publishes of its own store": ["tests/agents/test_langgraph_store.py"],
    "store: `BaseStore` in graphs, synchronous, asynchronous and in batches": [
        f"{_ITEMS}::test_a_graph_remembers_across_threads_in_sync_and_async_nodes",
        f"{_ITEMS}::test_it_answers_as_the_store_in_memory_does",
    ],
    "store: put, get, search, namespaces and `ttl`, by the Python SDK": [
        f"{_ITEMS}::test_the_client_puts_gets_searches_and_deletes",
        f"{_ITEMS}::test_an_item_goes_when_its_time_is_over_and_a_read_lets_it_begin_anew",
    ],
    "`store.index`: search by meaning": [
        "tests/agents/test_item_search.py::test_items_are_found_by_what_they_mean_nearest_first"
    ],
    "crons, store, threads, runs and assistants, by the JavaScript SDK 2.x and the newest 1.x": [
        f"{_JAVASCRIPT}::test_the_javascript_sdk"
    ],
    "`useStream` of `@langchain/react` (1.x) and of the SDK (2.x) in React: tokens, interrupts, reload, stop, threads, edits, "
    "subgraphs, a WebSocket": [f"{_JAVASCRIPT}::test_pages_in_react_follow_their_threads"],
    "`threads.stream` of the Python SDK, by events and by a WebSocket": [
        "tests/agents/test_protocol.py",
        "tests/agents/test_thread_socket.py",
    ],
    "`threads.join_stream`: all runs of a thread over one connection": ["tests/agents/test_thread_stream.py"],
}


def main() -> int:
    with TemporaryDirectory() as folder:
        report = Path(folder) / "results.xml"
        tests = sorted({test for tests in ROWS.values() for test in tests})
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
        failed = subprocess.run(command, cwd=ROOT, check=False).returncode
        results = _results(report)
    before, _, rest = PAGE.read_text().partition("<!-- results -->\n")
    _, _, after = rest.partition("\n<!-- end of results -->")
    PAGE.write_text(f"{before}<!-- results -->\n{table(results)}\n<!-- end of results -->{after}")
    return failed


def table(results: dict[str, tuple[int, int]]) -> str:
    """Make the table. `results` tells how many cases each test has, and how many of them passed."""
    lines = ["| what | works | shown by |", "|---|---|---|"]
    for what, tests in ROWS.items():
        cases, passed = (sum(each) for each in zip(*(results.get(test, (0, 0)) for test in tests), strict=True))
        verdict = "yes" if cases and passed == cases else f"**no: {passed} of {cases} cases**"
        lines.append(f"| {what} | {verdict} | {', '.join(f'`{test}`' for test in tests)} |")
    return "\n".join(lines)


def _results(report: Path) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest has just written it
        file = case.get("classname", "").replace(".", "/") + ".py"
        function = case.get("name", "").partition("[")[0]
        good = not any(case.find(bad) is not None for bad in ("failure", "error", "skipped"))
        for name in (file, f"{file}::{function}"):
            cases, passed = found.get(name, (0, 0))
            found[name] = (cases + 1, passed + good)
    return found


if __name__ == "__main__":
    sys.exit(main())
