"""Hyperparameters near to those of another trial lie in the space, and follow from the seed."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution

from searchlight.search.analysis.ladder import snap
from searchlight.search.samplers import perturbation
from searchlight.search.samplers.perturbation import perturb, resample
from searchlight.search.space.search_space import list_values, resolve_space
from searchlight.trainables.task import TaskConfig, searchable


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


def drawn(count, space=SPACE, **values):
    return [perturb(space, {**VALUES, **values}, random.Random(seed)) for seed in range(count)]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        pytest.param("lr", 1e-3, {0.0008, 0.0012}, id="a fifth up or down"),
        pytest.param("shift", 0.0, {-0.2, 0.2}, id="zero"),
        pytest.param("depth", 4, {3, 5}, id="whole number"),
        pytest.param("width", 32, {24, 40}, id="whole number with a step"),
        pytest.param("rate", 0.2, {0.1, 0.3}, id="number with a step"),
        pytest.param("kind", "b", {"a", "c"}, id="choice"),
        pytest.param("kind", "a", {"b"}, id="first choice"),
        pytest.param("lr", 1e-1, {0.08}, id="upper bound"),
        pytest.param("depth", 9, {7}, id="upper bound of a whole number"),
    ],
)
def test_value_moves_to_its_neighbors(monkeypatch, name, value, expected):
    monkeypatch.setattr(perturbation, "RESAMPLED", 0.0)
    near = {values[name] for values in drawn(30, **{name: value})}
    assert {value if isinstance(value, str) else round(value, 9) for value in near} == expected


def test_conditional_parameter_follows_the_one_it_depends_on():
    for values in drawn(40, precision="fp16", growth=100):
        assert ("growth" in values) == (values["precision"] == "fp16")
    appeared = [values["growth"] for values in drawn(40, precision="bf16") if values["precision"] == "fp16"]
    assert appeared
    assert all(10 <= growth <= 1000 for growth in appeared)


@pytest.mark.parametrize("value", [1e-5, 3e-4, 1e-1])
def test_a_quarter_of_the_values_is_drawn_anew(value):
    rates = [values["lr"] for values in drawn(400, lr=value)]
    far = [rate for rate in rates if not 0.7 * value < rate < 1.3 * value]
    assert 0.15 < len(far) / len(rates) < 0.35
    exponents = [math.log10(rate) for rate in far]
    assert min(exponents) < -4.5, "on the scale of the parameter"
    assert max(exponents) > -1.5


def test_fixed_parameter_is_not_perturbed():
    space = resolve_space(Config, {"lr": "1e-2", "precision": "fp32"}, {})
    near = perturb(space, {name: value for name, value in VALUES.items() if name != "lr"}, random.Random(0))
    assert "lr" not in near
    assert space.build_config(near).lr == 1e-2


@given(seed=st.integers(0, 2**31), steps=st.integers(1, 12))
def test_many_perturbations_stay_in_the_space(seed, steps):
    values = VALUES
    for step in range(steps):
        values = perturb(SPACE, values, random.Random(f"{seed}-{step}"))
        for name, value in values.items():
            distribution = PARAMETERS[name].distribution
            assert distribution._contains(distribution.to_internal_repr(value)), (name, value)
        assert SPACE.build_config(values).model_dump()


@pytest.mark.parametrize(("low", "high", "step"), [(0.1, 0.3, 0.1), (0.0, 0.6, 0.2), (0.1, 0.7, 0.2)])
def test_values_of_a_range_with_steps_end_at_its_end(low, high, step):
    distribution = FloatDistribution(low, high, step=step)
    drawn = {resample(distribution, random.Random(seed)) for seed in range(30)}
    assert sorted(drawn) == list_values(distribution)
    assert all(distribution._contains(value) for value in drawn), "0.1 + 2 * 0.1 is above 0.3"
    assert (min(drawn), max(drawn), snap(distribution, high)) == (low, high, high)


def test_seed_decides_the_perturbation():
    first, second = (perturb(SPACE, VALUES, random.Random("0-7")) for _ in range(2))
    assert first == second
    assert first != perturb(SPACE, VALUES, random.Random("0-8"))
