"""Hyperparameters near to those of another trial lie in the space, and follow from the seed."""

import math
import random

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

import search.samplers.perturbation
from search.config.search_space import resolve_space
from search.samplers.perturbation import perturb
from trainables.task import TaskConfig, searchable


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
    shift: float = searchable(0.0, low=-1.0, high=1.0)
    rate: float = searchable(0.2, low=0.0, high=1.0, step=0.1)
    depth: int = searchable(4, low=1, high=9)
    width: int = searchable(32, low=8, high=128, step=8)
    size: int = searchable(8, low=1, high=512, log=True)
    kind: str = searchable("b", choices=["a", "b", "c", "d"])
    growth: int = searchable(100, low=10, high=1000, log=True, when={"precision": "fp16"})


SPACE = resolve_space(Config, {}, {})
PARAMETERS = {parameter.name: parameter for parameter in SPACE.parameters}
VALUES = {name: getattr(Config(), name) for name in PARAMETERS if name not in ("precision", "growth")}
VALUES["precision"] = "fp32"


@pytest.fixture
def near(monkeypatch):
    """Explores from `VALUES` without drawing a value anew, as often as there are seeds."""
    monkeypatch.setattr(search.samplers.perturbation, "RESAMPLED", 0.0)

    def explored(**values):
        return [perturb(SPACE, {**VALUES, **values}, random.Random(seed)) for seed in range(30)]

    return explored


def test_a_number_becomes_0_8_or_1_2_times_what_it_was(near):
    assert {round(values["lr"], 9) for values in near()} == {0.0008, 0.0012}


def test_a_number_of_zero_moves_too(near):
    assert {values["shift"] for values in near()} == {-0.2, 0.2}


def test_a_whole_number_and_one_with_a_step_move_by_a_step_at_least(near):
    assert {values["depth"] for values in near()} == {3, 5}
    assert {values["width"] for values in near()} == {24, 40}
    assert {round(values["rate"], 9) for values in near()} == {0.1, 0.3}


def test_a_choice_becomes_its_neighbour(near):
    assert {values["kind"] for values in near()} == {"a", "c"}
    assert {values["kind"] for values in near(kind="a")} == {"b"}


def test_at_a_bound_a_value_moves_the_other_way(near):
    at_the_top = near(lr=1e-1, depth=9)
    assert {round(values["lr"], 9) for values in at_the_top} == {0.08}
    assert {values["depth"] for values in at_the_top} == {7}


def test_a_parameter_comes_and_goes_with_the_one_that_it_depends_on():
    fp16 = {**VALUES, "precision": "fp16", "growth": 100}
    for seed in range(40):
        near = perturb(SPACE, fp16, random.Random(seed))
        assert ("growth" in near) == (near["precision"] == "fp16")
    appeared = [perturb(SPACE, {**VALUES, "precision": "bf16"}, random.Random(seed)) for seed in range(40)]
    assert all(10 <= values["growth"] <= 1000 for values in appeared if values["precision"] == "fp16")
    assert any("growth" in values for values in appeared)


def test_now_and_then_a_value_is_drawn_anew():
    drawn = [perturb(SPACE, VALUES, random.Random(seed))["lr"] for seed in range(400)]
    far = [lr for lr in drawn if not 0.0007 < lr < 0.0013]
    assert 0.15 < len(far) / len(drawn) < 0.35
    assert min(far) < 1e-4 < 1e-2 < max(far), "on the scale of the parameter"


def test_what_is_fixed_stays_out():
    space = resolve_space(Config, {"lr": "1e-2", "precision": "fp32"}, {})
    near = perturb(space, {name: value for name, value in VALUES.items() if name != "lr"}, random.Random(0))
    assert "lr" not in near
    assert space.build_config(near).lr == 1e-2


@given(seed=st.integers(0, 2**31), steps=st.integers(1, 12))
def test_however_far_it_goes_it_stays_in_the_space(seed, steps):
    values = VALUES
    for step in range(steps):
        values = perturb(SPACE, values, random.Random(f"{seed}-{step}"))
        for name, value in values.items():
            distribution = PARAMETERS[name].distribution
            assert distribution._contains(distribution.to_internal_repr(value)), (name, value)
        assert SPACE.build_config(values).model_dump()
    optuna.trial.create_trial(
        state=optuna.trial.TrialState.RUNNING,
        params=values,
        distributions={name: PARAMETERS[name].distribution for name in values},
    )


def test_the_same_seed_gives_the_same():
    first, second = (perturb(SPACE, VALUES, random.Random("0-7")) for _ in range(2))
    assert first == second
    assert first != perturb(SPACE, VALUES, random.Random("0-8"))


@pytest.mark.parametrize("value", [1e-5, 3e-4, 1e-1])
def test_a_logarithmic_value_is_drawn_over_its_whole_range(value):
    drawn = [math.log10(perturb(SPACE, {**VALUES, "lr": value}, random.Random(seed))["lr"]) for seed in range(300)]
    assert min(drawn) < -4.5
    assert max(drawn) > -1.5
