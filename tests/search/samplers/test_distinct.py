"""No suggestion comes twice."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import create_trial

from searchlight.search.samplers.distinct import _is_tried
from searchlight.search.samplers.factory import create_sampler
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.study import create_study
from searchlight.trainables.task import TaskConfig, searchable
from tests.search.objectives import VAL_LOSS
from tests.search.study.played_studies import SAMPLERS, complete, play_trials


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
    width: int = 2
    dropout: float = 0.1
    beta: float = searchable(0.5, low=0.0, high=1.0, when={"precision": "fp16"})


CONTINUOUS = resolve_space(Config, {"precision": "fp32"}, {})
DISCRETE = resolve_space(Config, {"lr": 1e-3, "precision": "fp32"}, {"width": "1..4", "dropout": "0.1..0.3:step=0.1"})
CONDITIONAL = resolve_space(Config, {"lr": 1e-3}, {"precision": "fp32,fp16", "beta": "0.0..1.0:step=0.5"})


def search(folder, sampler, space, trials, parallel):
    study, lock = create_study(folder, partial(create_sampler, sampler, 0), [VAL_LOSS])

    def tell(number, values):
        complete(study, number, sum(float(value) for value in values.values() if not isinstance(value, str)))

    asked = play_trials(study, space, trials, tell, parallel)
    lock.close()
    return asked


def distinct(asked):
    def rounded(value):
        return f"{value:.10g}" if isinstance(value, float) else value

    return {frozenset((name, rounded(value)) for name, value in values.items()) for values in asked}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_parallel_trials_have_different_values(tmp_path, sampler):
    assert len(distinct(search(tmp_path, sampler, CONTINUOUS, trials=20, parallel=8))) == 20


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    ("space", "parallel"), [pytest.param(DISCRETE, 8, id="discrete"), pytest.param(CONDITIONAL, 2, id="conditional")]
)
def test_small_space_is_tried_as_a_whole(tmp_path, sampler, space, parallel):
    """A parameter that does not apply makes no difference."""
    combinations = space.list_combinations()
    assert distinct(search(tmp_path, sampler, space, len(combinations), parallel)) == distinct(combinations)


def test_exhausted_space_suggests_something_again(tmp_path):
    assert len(search(tmp_path, "random", DISCRETE, trials=14, parallel=2)) == 14


def test_space_that_an_earlier_search_has_tried_is_tried_as_a_whole(tmp_path):
    space = resolve_space(Config, {"lr": 1e-3, "precision": "fp32", "dropout": 0.1}, {"width": "1..4"})
    distributions = {p.name: p.distribution for p in space.parameters if p.name == "width"}
    earlier = [create_trial(params={"width": w}, distributions=distributions, value=0.0) for w in (1, 2, 3, 4)]
    for number, trial in enumerate(earlier, -4):
        trial.number = number
    study, store = create_study(tmp_path, partial(create_sampler, "random", 0), [VAL_LOSS], earlier=earlier)
    asked = play_trials(study, space, 4, lambda number, values: complete(study, number, 0.0))
    store.close()
    assert sorted(values["width"] for values in asked) == [1, 2, 3, 4]


def test_enqueued_values_stay_and_the_others_are_new(tmp_path):
    study, lock = create_study(tmp_path, partial(create_sampler, "random", 0), [VAL_LOSS])
    for values in ({"width": 1, "dropout": 0.1}, {"width": 1, "dropout": 0.2}, {"width": 1}):
        study.enqueue(values)
        _, drawn = study.ask(DISCRETE)
    assert drawn == {"width": 1, "dropout": pytest.approx(0.3)}
    lock.close()


def test_combinations_are_listed_for_small_finite_spaces_alone():
    assert len(distinct(DISCRETE.list_combinations())) == 12
    precisions = [values["precision"] for values in CONDITIONAL.list_combinations()]
    assert sorted(precisions) == ["fp16"] * 3 + ["fp32"]
    assert CONTINUOUS.list_combinations() is None
    assert resolve_space(Config, {"lr": 1e-3, "precision": "fp32"}, {"width": "1..1000000"}).list_combinations() is None


@given(st.floats(1e-9, 1e9), st.floats(-3e-12, 3e-12))
def test_values_are_tried_again_if_twelve_digits_agree(value, off):
    moved = value * (1 + off)
    others = [{"n": 1}, {"n": 1, "lr": None}, {"n": 2, "lr": moved}, {"lr": moved}]
    assert not _is_tried({"lr": value, "n": 1}, others)
    assert _is_tried({"lr": value, "n": 1}, [*others, {"n": 1, "lr": moved}]) == (f"{value:.12g}" == f"{moved:.12g}")
