"""What searches at several sizes show together, from stored trials."""

import math

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from searchlight.search.analysis.ladder import Ladder, SizedSearch, snap
from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import build_record

OBJECTIVE = Objective("val/loss", "min")
SPACE = {
    "lr": FloatDistribution(1e-4, 1.0, log=True),
    "warmup": IntDistribution(10, 100, step=10),
    "kind": CategoricalDistribution(["a", "b"]),
}


def search_at(width, first=(), count=12):
    """Return a search whose best lr is 0.1 at width 8 and falls with the root of the width."""
    trials = []
    for index in range(count):
        params = {"lr": 1e-3 * 2 ** (index % 12 * 0.75), "warmup": 10 * (1 + index * 3 % 10), "kind": "ab"[index % 2]}
        params = dict(first[index]) if index < len(first) else params
        loss = 1 + 0.05 * (math.log(params["lr"]) - math.log(0.1) + 0.5 * math.log(width / 8)) ** 2
        loss += 0.01 * (params["kind"] == "a")
        attributes = {
            "outcome": "completed",
            "config": {"epochs": 1, **params},
            "report/1": {"metrics": {"val/loss": loss}, "held_gpu_s": width**2, "checkpoint": None},
        }
        trial = create_trial(
            state=TrialState.COMPLETE, value=loss, params=params, distributions=SPACE,
            user_attrs=attributes, intermediate_values={1: loss},
        )  # fmt: skip
        trial.number = index
        trials.append(trial)
    return SizedSearch(
        f"width{width}", {"width": width}, build_record(f"s-{width}", trials, (OBJECTIVE,), {"first": first})
    )


@pytest.fixture(scope="module")
def ladder():
    return Ladder([search_at(8), search_at(16), search_at(32)], {"width": 128}, {})


def test_setting_of_the_target_follows_the_law(ladder):
    assert ladder.law.predict(ladder.target)["lr"].value == pytest.approx(0.1 * 16**-0.5, rel=0.25)
    assert [parameter.name for parameter in ladder.parameters] == ["lr", "warmup"]
    assert ladder.choices == {"kind": "b"}
    assert ladder.as_json()["law"]["lr"]["moves"]


def test_points_of_the_next_size_are_in_the_space_and_differ(ladder):
    points = ladder.propose({"width": 64}, 6)
    assert len({tuple(point.items()) for point in points}) == len(points) == 6
    assert all(SPACE["lr"].low <= point["lr"] <= SPACE["lr"].high for point in points)
    assert all(point["warmup"] % 10 == 0 and isinstance(point["warmup"], int) for point in points)
    assert {point["kind"] for point in points} == {"b"}
    assert points[0]["lr"] == pytest.approx(0.1 * 8**-0.5, rel=0.25)


def test_each_size_has_fewer_trials_and_the_budget_is_kept(ladder):
    ladders = [Ladder([search_at(8, count=40), *ladder.searches[1:n]], {"width": 128}, {}) for n in (1, 2, 3)]
    plans = [each.plan_points({"width": 64}, math.inf) for each in ladders]
    assert [1 + len(points) for points, _ in plans] == [20, 10, 6]
    assert not any(each.unscaled in points for each, (points, _) in zip(ladders, plans, strict=True))
    # A trial of width 64 costs 64 ** 2 seconds by the law of the costs so far.
    assert ladder.estimate_cost({"width": 64}) == pytest.approx(64**2)
    points, reason = ladder.plan_points({"width": 64}, 3.5 * 64**2)
    assert (len(points), reason) == (2, "")


@pytest.mark.parametrize("seconds", [-100.0, 0.0, 2.5 * 64**2])
def test_size_that_the_budget_does_not_allow_is_refused_because_of_it(ladder, seconds):
    refusal = "the GPU-hours allow no 3 trials at width=64"
    assert ladder.plan_points({"width": 64}, seconds) == ([], refusal)


def test_proof_compares_the_predicted_setting_with_the_unscaled_one():
    small = search_at(8)
    unscaled = dict(small.best.params)
    predicted = {**unscaled, "lr": 0.05}
    ladder = Ladder([small, search_at(32, [unscaled, predicted])], {"width": 128}, {})
    proof = ladder.proof
    assert proof.predicted < proof.unscaled
    assert "width8, unchanged, has" in proof.statement
    assert "it loses" in proof.statement
    assert Ladder([small], {"width": 128}, {}).proof is None


def test_prediction_that_equals_the_unscaled_setting_is_no_neighbor():
    small = search_at(8)
    earlier = Ladder([small], {"width": 16}, {})
    unscaled = earlier.propose({"width": 16}, 1)[0]
    neighbor = {**unscaled, "lr": unscaled["lr"] * 2}
    proof = Ladder([small, search_at(16, [unscaled, neighbor])], {"width": 16}, {}).proof
    assert proof.predicted == proof.unscaled
    assert "the same" in proof.statement


def test_page_and_json_need_no_complete_trial():
    empty = Ladder([SizedSearch("width8", {"width": 8}, build_record("s", [], (OBJECTIVE,), {}))], {"width": 16}, {})
    assert empty.law is None
    assert empty.as_json()["sizes"][0]["trials"] == 0


@pytest.mark.parametrize(
    ("distribution", "value", "expected"),
    [
        (FloatDistribution(0.0, 1.0), 2.0, 1.0),
        (FloatDistribution(0.0, 1.0, step=0.25), 0.3, 0.25),
        (IntDistribution(1, 100, log=True), 7.6, 8),
        (IntDistribution(10, 100, step=10), 44.0, 40),
    ],
)
def test_values_are_those_of_the_space(distribution, value, expected):
    assert snap(distribution, value) == expected
