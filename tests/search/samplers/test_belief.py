"""What commands say about parameters: proposals follow it for a while, and results may contradict it."""

import random
from functools import partial

import pytest
from optuna.study import StudyDirection
from optuna.trial import TrialState

from searchlight.search.samplers.belief import HALVED, SHARE, RunningBelief, compute_losses, find_contradiction
from tests.search.samplers.test_mixture import SPACE, make_study, make_trial, propose_with

LR = RunningBelief(3e-5, 100)
LATER = partial(RunningBelief, since=20_000)  # after all proposals of these tests


@pytest.mark.parametrize("sampler", ["tpe", "mixture"])
def test_values_near_a_belief_are_proposed_less_and_less(sampler):
    def count_near(beliefs):
        found = propose_with(make_study([]), beliefs, range(200), name=sampler)  # of trials from 10,000 on
        return sum(each["lr"] < 1e-4 for each in found), sum(each["kind"] == "c" for each in found)

    def believe(since):
        return {"lr": [RunningBelief(3e-5, since)], "kind": [RunningBelief("c", since)]}

    untold, told, fading = count_near({}), count_near(believe(10_200)), count_near(believe(10_100))
    assert told[0] > fading[0] + 10 > untold[0] + 20
    assert told[1] > fading[1] + 10 > untold[1] + 20
    assert all(abs(late - before) < 10 for late, before in zip(count_near(believe(0)), untold, strict=True))
    assert [LR.compute_share(100 + n * HALVED) for n in range(3)] == [SHARE, SHARE / 2, SHARE / 4]


def test_several_values_share_the_proposals_of_one():
    def count(beliefs):
        found = propose_with(make_study([]), {"kind": beliefs}, range(300), name="tpe")
        return [sum(each["kind"] == kind for each in found) for kind in ("a", "b", "c")]

    (_, _, alone), (equal_a, equal_b, equal_c) = count([LATER("c")]), count([LATER("a"), LATER("c")])
    assert equal_b == pytest.approx(50, abs=15), "half of the proposals, of three kinds"
    assert equal_a == pytest.approx(125, abs=20)
    assert equal_c == pytest.approx(125, abs=20)
    assert alone == pytest.approx(200, abs=20)
    forgotten, *_ = count([RunningBelief("a", -2_000)])
    assert forgotten == pytest.approx(100, abs=20), "no share is left after so many trials"
    faded_a, _, newer_c = count([RunningBelief("a", 9_960), LATER("c")])
    assert newer_c > faded_a + 70, "the newer one has most of the share"


def test_proposals_without_a_belief_are_those_of_before():
    study = make_study([])
    assert propose_with(study, {}, range(20)) == propose_with(study, {"other": [LR]}, range(20))


def play(losses_near, losses_elsewhere, diverged=0):
    """Trials near the center of LR and elsewhere, with these values."""
    draw = random.Random(0)
    rates = [(3e-5, loss) for loss in losses_near] + [(10 ** draw.uniform(-3, -1), loss) for loss in losses_elsewhere]
    trials = []
    for number, (rate, loss) in enumerate(rates):
        trial = make_trial({"lr": rate, "layers": 1, "kind": "a"}, {1: loss}, TrialState.PRUNED)
        trial.number = number
        if number < diverged:
            trial.system_attrs = {"constraints:diverged": 1.0}
        trials.append(trial)
    return trials


def explain(name, belief, trials, direction=StudyDirection.MINIMIZE):
    return find_contradiction(name, belief, trials, compute_losses(trials, direction))


@pytest.mark.parametrize(
    ("near", "elsewhere", "direction", "is_contradicted"),
    [
        ([9, 9.1, 9.2, 9.3], [1, 1.1, 1.2, 1.3, 1.4, 1.5], StudyDirection.MINIMIZE, True),
        ([9, 9.1, 9.2, 9.3], [1, 1.1, 1.2, 1.3, 1.4, 1.5], StudyDirection.MAXIMIZE, False),
        ([1, 1.1, 1.2, 1.3], [9, 9.1, 9.2, 9.3, 9.4, 9.5], StudyDirection.MAXIMIZE, True),
        ([9, 9.1, 9.2], [1, 1.1, 1.2, 1.3, 1.4, 1.5], StudyDirection.MINIMIZE, False),  # too few
        ([1.05, 9.1, 1.25, 9.3], [1, 1.1, 1.2, 1.3, 1.4, 1.5], StudyDirection.MINIMIZE, False),  # not clear
    ],
)
def test_belief_is_contradicted_by_worse_trials_near_it(near, elsewhere, direction, is_contradicted):
    reason = explain("lr", LR, play(near, elsewhere), direction)
    assert bool(reason) == is_contradicted
    if is_contradicted:
        assert reason == "4 trials near lr=3e-05 are worse than 6 others, p = 0.005"


def test_trials_that_diverge_near_a_belief_contradict_it():
    trials = play([1, 1.1, 1.2, 1.3], [9, 9.1, 9.2, 9.3, 9.4, 9.5], diverged=4)
    assert "4 trials near" in explain("lr", LR, trials)


def test_choice_is_compared_with_the_other_choices():
    trials = play([9, 9.1, 9.2, 9.3], [1, 1.1, 1.2, 1.3, 1.4, 1.5])
    for trial in trials[4:]:
        trial.params = {**trial.params, "kind": "b"}
    assert explain("kind", RunningBelief("a", 0), trials)
    assert not explain("kind", RunningBelief("b", 0), trials)
    assert SPACE["kind"].choices == ("a", "b", "c")
