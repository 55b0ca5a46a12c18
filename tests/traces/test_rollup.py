"""What a run says of its trace."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS
from moorage.traces.rollup import Subtree, add_rollup, subtrees
from moorage.traces.store.run_reads import RunKey
from moorage.traces.store.trace_reads import TraceMember

ROOT, MIDDLE, NEVER_CAME, LEAF, LATER = (UUID(int=number) for number in range(1, 6))
PROJECT, OTHER_PROJECT = UUID(int=8), UUID(int=9)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def key(run_id, after_s=0, project=PROJECT):
    return RunKey(project, AT + timedelta(seconds=after_s), run_id, ROOT)


def run(run_id, *parents, after_s=0, **usage):
    told = {name: usage.get(name) for name in (*USAGE_FIELDS, *USAGE_DETAILS)} if usage else None
    return TraceMember(key(run_id, after_s), list(parents), None, told)


def test_a_run_is_below_all_that_it_names_also_where_one_between_never_came():
    leaf = run(LEAF, ROOT, MIDDLE, NEVER_CAME)
    found = subtrees([run(ROOT), run(MIDDLE, ROOT), leaf], [key(ROOT), key(MIDDLE), key(LEAF)])
    assert {each.id: {lower.key.id for lower in family.below} for each, family in found.items()} == {
        ROOT: {MIDDLE, LEAF},
        MIDDLE: {LEAF},
        LEAF: set(),
    }


def test_a_run_that_names_nobody_is_below_the_root_of_its_trace():
    assert subtrees([run(LEAF)], [key(ROOT), key(MIDDLE)]) == {
        key(ROOT): Subtree(None, [run(LEAF)]),
        key(MIDDLE): Subtree(None, []),
    }


def test_a_trace_that_was_sent_to_two_projects_has_two_subtrees():
    here, there = run(LEAF, ROOT), run(LEAF, ROOT)._replace(key=key(LEAF, project=OTHER_PROJECT))
    found = subtrees([here, there], [key(ROOT), key(ROOT, project=OTHER_PROJECT)])
    assert [family.below for family in found.values()] == [[here], [there]]


def test_what_the_runs_below_say_is_added_up_where_the_run_says_nothing():
    runs = [
        run(LATER, ROOT, MIDDLE, after_s=2, total_tokens="5", total_cost="0.000000000001"),
        run(LEAF, ROOT, after_s=1, total_tokens="7", total_cost="0.1", prompt_token_details='{"cache_read": 3}'),
    ]
    shown = {"id": ROOT}
    names = {"total_tokens", "total_cost", "prompt_tokens", "completion_tokens", "prompt_token_details"}
    family = Subtree(run(ROOT, prompt_tokens="9"), runs)
    add_rollup(shown, family, names | {"child_run_ids", "direct_child_run_ids", "first_token_below"})
    assert shown == {
        "id": ROOT,
        "total_tokens": 12,
        "total_cost": Decimal("0.100000000001"),
        "prompt_tokens": 9,
        "completion_tokens": None,
        "prompt_token_details": {"cache_read": Decimal(3)},
        "child_run_ids": [LEAF, LATER],
        "direct_child_run_ids": [LEAF],
        "first_token_below": None,
    }
