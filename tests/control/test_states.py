"""The transitions of a revision, walked at random."""

import random

from moorage.control.records.states import AT_WORK, REVISION_MOVES, TERMINAL, RevisionStatus

S = RevisionStatus


def test_every_state_has_its_ways_and_the_terminal_ones_have_none():
    assert set(REVISION_MOVES) == set(S)
    assert {
        S.DEPLOYED,
        S.CREATE_FAILED,
        S.BUILD_FAILED,
        S.DEPLOY_FAILED,
        S.SKIPPED,
        S.INTERRUPTED,
        S.UNKNOWN,
    } == TERMINAL


def test_every_walk_ends_and_only_what_was_deployed_has_served():
    chance = random.Random(5)
    for _ in range(500):
        at, path = S.CREATING, [S.CREATING]
        while at not in TERMINAL:
            at = chance.choice(sorted(REVISION_MOVES[at]))
            assert at not in path, "no way leads back"
            path.append(at)
        assert (at is S.DEPLOYED) == (path[-2] is S.DEPLOYING and at is not S.DEPLOY_FAILED and at is not S.INTERRUPTED)


def test_whatever_has_not_ended_may_be_interrupted():
    assert all(S.INTERRUPTED in REVISION_MOVES[status] for status in set(S) - TERMINAL)
    assert not AT_WORK & TERMINAL
