"""No suggestion comes twice."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.config.search_space import resolve_space
from search.samplers.distinct import _is_duplicate
from search.samplers.factory import create_sampler
from search.study.study import create_study
from tests.search.objectives import VAL_LOSS
from trainables.task import TaskConfig, searchable

SAMPLERS = ["tpe", "gp", "cmaes", "qmc", "nsga2", "random"]


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
    width: int = 2
    dropout: float = 0.1
    beta: float = searchable(0.5, low=0.0, high=1.0, when={"precision": "fp16"})


CONTINUOUS = resolve_space(Config, {"precision": "fp32"}, {})
DISCRETE = resolve_space(Config, {"lr": 1e-3, "precision": "fp32"}, {"width": "1..4", "dropout": "0.1..0.3:step=0.1"})
CONDITIONAL = resolve_space(Config, {"lr": 1e-3}, {"precision": "fp32,fp16", "beta": "0.0..1.0:step=0.5"})


def search(folder, sampler, space, trials, parallel, seed=0):
    """The values of all trials; so many are asked for before one is told."""
    study, lock = create_study(folder, partial(create_sampler, sampler, seed), [VAL_LOSS])
    asked, waiting = [], []
    for _ in range(trials):
        number, values = study.ask(space)
        study.live.add(number)
        asked.append(values)
        waiting.append((number, values))
        if len(waiting) == parallel:
            number, values = waiting.pop(0)
            loss = sum(float(value) for value in values.values() if not isinstance(value, str))
            study.report(number, 1, loss, {"metrics": {"loss": loss}, "checkpoint": None})
            study.end(number, "completed")
            study.live.discard(number)
    lock.close()
    return asked


def distinct(asked):
    return {tuple(sorted((name, str(value)[:12]) for name, value in values.items())) for values in asked}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_trials_at_the_same_time_have_different_values(tmp_path, sampler):
    assert len(distinct(search(tmp_path, sampler, CONTINUOUS, trials=20, parallel=8))) == 20


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_small_space_is_tried_as_a_whole_before_anything_comes_again(tmp_path, sampler):
    asked = search(tmp_path, sampler, DISCRETE, trials=12, parallel=8)
    assert {(values["width"], round(values["dropout"], 9)) for values in asked} == {
        (width, dropout) for width in (1, 2, 3, 4) for dropout in (0.1, 0.2, 0.3)
    }


def test_when_all_has_been_tried_something_comes_again(tmp_path):
    assert len(search(tmp_path, "random", DISCRETE, trials=14, parallel=2)) == 14


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_parameter_that_does_not_apply_makes_no_difference(tmp_path, sampler):
    """fp32 alone, and fp16 with each of three values: there is no fourth."""
    asked = search(tmp_path, sampler, CONDITIONAL, trials=4, parallel=2)
    assert sorted((values["precision"], values.get("beta")) for values in asked if "beta" in values) == [
        ("fp16", 0.0),
        ("fp16", 0.5),
        ("fp16", 1.0),
    ]
    assert {"precision": "fp32"} in asked


def test_what_an_enqueued_trial_brings_with_it_stays_and_the_rest_is_new(tmp_path):
    study, lock = create_study(tmp_path, partial(create_sampler, "random", 0), [VAL_LOSS])
    for values in ({"width": 1, "dropout": 0.1}, {"width": 1, "dropout": 0.2}, {"width": 1}):
        study.enqueue(values)
        _, drawn = study.ask(DISCRETE)
    assert drawn == {"width": 1, "dropout": pytest.approx(0.3)}
    lock.close()


def test_combinations_of_a_finite_space_are_those_that_can_be_suggested():
    assert len(DISCRETE.list_combinations()) == 12
    assert len(CONDITIONAL.list_combinations()) == 4
    assert CONTINUOUS.list_combinations() is None
    assert resolve_space(Config, {"lr": 1e-3, "precision": "fp32"}, {"width": "1..1000000"}).list_combinations() is None


@given(st.floats(1e-9, 1e9), st.floats(-3e-12, 3e-12))
def test_values_are_alike_if_and_only_if_their_first_twelve_digits_are(value, off):
    moved = value * (1 + off)
    assert _is_duplicate({"lr": value, "n": 1}, {"n": 1, "lr": moved}) == (f"{value:.12g}" == f"{moved:.12g}")
    assert not _is_duplicate({"lr": value, "n": 1}, {"lr": moved, "n": 2})
    assert not _is_duplicate({"lr": value}, {"lr": moved, "n": 1})
