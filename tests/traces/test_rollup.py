"""Values of a run that are added up over its trace."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.store.run_reads import FoundRun, RunKey
from moorage.traces.store.trace_reads import roll_up

ROOT, MIDDLE, NEVER_CAME, LEAF, LATER = (UUID(int=number) for number in range(1, 6))
PROJECT, OTHER_PROJECT = UUID(int=8), UUID(int=9)
AT = datetime(2026, 1, 1, tzinfo=UTC)
CHILDREN = {"child_run_ids", "direct_child_run_ids"}


def key(run_id, after_s=0, project=PROJECT):
    return RunKey(project, AT + timedelta(seconds=after_s), run_id, ROOT)


def run(run_id, *parents, after_s=0, project=PROJECT, **usage):
    told = {name: usage.get(name) for name in (*USAGE_FIELDS, *USAGE_DETAILS)} if usage else None
    row = {
        "parent_run_ids": ",".join(map(str, parents)) or None,
        "usage": told and json.dumps(told),
        "first_token_time": None,
        "patched_first_token_time": None,
    }
    return FoundRun(key(run_id, after_s, project), row)


def rolled_up(keys, members, names=CHILDREN):
    runs = [FoundRun(each, {}) for each in keys]
    roll_up(runs, members, names)
    return [found.row for found in runs]


def test_a_run_is_below_all_that_it_names_also_where_one_between_never_came():
    leaf = run(LEAF, ROOT, MIDDLE, NEVER_CAME)
    found = rolled_up([key(ROOT), key(MIDDLE), key(LEAF)], [run(ROOT), run(MIDDLE, ROOT), leaf])
    assert [set(row["child_run_ids"]) for row in found] == [{MIDDLE, LEAF}, {LEAF}, set()]


def test_a_run_that_names_nobody_is_below_the_root_of_its_trace():
    found = rolled_up([key(ROOT), key(MIDDLE)], [run(LEAF)])
    assert [(row["child_run_ids"], row["direct_child_run_ids"]) for row in found] == [([LEAF], []), ([], [])]


def test_a_trace_that_was_sent_to_two_projects_has_two_subtrees():
    here, there = run(LEAF, ROOT, total_tokens="1"), run(LEAF, ROOT, project=OTHER_PROJECT, total_tokens="2")
    found = rolled_up([key(ROOT), key(ROOT, project=OTHER_PROJECT)], [here, there], {"total_tokens", *CHILDREN})
    assert [row["total_tokens"] for row in found] == [1, 2]
    assert [row["child_run_ids"] for row in found] == [[LEAF], [LEAF]]


def test_what_the_runs_below_say_is_added_up_where_the_run_says_nothing():
    runs = [
        run(LATER, ROOT, MIDDLE, after_s=2, total_tokens="5", total_cost="0.000000000001"),
        run(LEAF, ROOT, after_s=1, total_tokens="7", total_cost="0.1", prompt_token_details='{"cache_read": 3}'),
    ]
    names = {"total_tokens", "total_cost", "prompt_tokens", "completion_tokens", "prompt_token_details"}
    [shown] = rolled_up([key(ROOT)], [run(ROOT, prompt_tokens="9"), *runs], {*names, *CHILDREN, "first_token_below"})
    assert shown == {
        "total_tokens": 12,
        "total_cost": Decimal("0.100000000001"),
        "prompt_tokens": 9,
        "completion_tokens": None,
        "prompt_token_details": {"cache_read": Decimal(3)},
        "child_run_ids": [LEAF, LATER],
        "direct_child_run_ids": [LEAF],
        "first_token_below": None,
    }
