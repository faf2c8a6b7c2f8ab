import pytest
from pydantic import model_validator

from searchlight.search.errors import UsageError
from searchlight.search.space.initial_points import initial_points, parse_beliefs
from searchlight.search.space.search_space import resolve_space
from searchlight.trainables.task import TaskConfig, searchable
from tests.search.refusals import problems_of


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
    width: int = searchable(32, low=8, high=64, step=8)
    growth: int = searchable(100, low=10, high=1000, when={"precision": "fp16"})
    hidden: int = 16

    @model_validator(mode="after")
    def refuse_a_wide_model_at_a_high_rate(self):
        if self.lr * self.width > 1:
            raise ValueError("lr times width must be at most 1")
        return self


DEFAULTS = {"precision": "fp32", "lr": 1e-3, "width": 32}


def points(*given, trials=9, fixed=None, searched=None):
    return initial_points(resolve_space(Config, fixed or {}, searched or {}), given, trials)


def test_defaults_come_first_and_complete_each_point():
    assert points({"lr": "1e-2"}, {"precision": "bf16", "width": 8}) == [
        DEFAULTS,
        {**DEFAULTS, "lr": 1e-2},
        {**DEFAULTS, "precision": "bf16", "width": 8},
    ]


def test_conditional_parameter_comes_with_its_condition():
    assert points({"precision": "fp16"})[1] == {**DEFAULTS, "precision": "fp16", "growth": 100}
    assert points({"growth": "20", "precision": "fp16"})[1] == {**DEFAULTS, "precision": "fp16", "growth": 20}


def test_default_outside_of_the_range_is_left_out():
    remaining = {"precision": "fp32", "width": 32}
    assert points({"width": 16}, searched={"lr": "1e-5..1e-4"}) == [remaining, {**remaining, "width": 16}]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"widht": 8}, "--try widht must name a parameter, but there is no 'widht'. Did you mean 'width'?"),
        ({"hidden": 8}, "--try hidden must be searched, but it is fixed to 16. Leave it out."),
        ({"lr": "fast"}, "--try lr must be a valid number, but got 'fast'."),
        ({"lr": "1"}, "--try lr must lie in the searched range, 1e-05..0.1:log, but got 1."),
        ({"width": "12"}, "--try width must lie in the searched range, 8..64:step=8, but got 12."),
        ({"width": "8.5"}, "--try width must be a valid integer, but got '8.5'."),
        ({"precision": "auto"}, "--try precision must lie in the searched range, fp32,bf16,fp16, but got auto."),
        ({"growth": 20}, "--try growth must come with precision=fp16, but got precision=fp32."),
        ({"lr": "0.1", "width": "64"},
         "--try lr=0.1,width=64 must be what the task takes: lr times width must be at most 1."),
    ],
)  # fmt: skip
def test_point_that_does_not_fit_is_refused(given, line):
    assert problems_of(points, given) == [line]
    assert problems_of(points, {"lr": "x", "width": "y"}, given)[-1:] == [line]


class Choices(Config):
    shape: str = searchable("[8,8]", choices=["[8,8]", "[64,64]"])
    kind: str = searchable("a", choices=["a", "b, c"])
    maybe: int | None = searchable(None, choices=[None, 1, 2])


@pytest.mark.parametrize(
    ("told", "values"),
    [
        ({"lr": "1e-3, 1e-2,0.001"}, {"lr": [1e-3, 1e-2]}),
        ({"lr": 1e-3}, {"lr": [1e-3]}),
        ({"lr": [1e-3, "1e-2"]}, {"lr": [1e-3, 1e-2]}),
        ({"shape": "[64,64]"}, {"shape": ["[64,64]"]}),
        ({"shape": "[8,8],[64,64]"}, {"shape": ["[8,8]", "[64,64]"]}),
        ({"kind": "b, c"}, {"kind": ["b, c"]}),
        ({"maybe": "none,2"}, {"maybe": [None, 2]}),
    ],
)
def test_values_to_believe_in_are_one_or_several(told, values):
    assert parse_beliefs(resolve_space(Choices, {}, {}), told) == values


def test_each_wrong_value_to_believe_in_is_told():
    with pytest.raises(UsageError) as refused:
        parse_beliefs(resolve_space(Choices, {}, {}), {"lr": "7,8", "kinds": "a", "kind": [], "shape": {"a": 1}})
    assert [problem.split(",")[0] for problem in refused.value.problems] == [
        "lr must lie in the searched range",
        "lr must lie in the searched range",
        "kinds must name a parameter",
        "kind must have a value",
        "shape must be a valid string",
    ]


def test_same_points_are_tried_once_and_count_once():
    assert points({"lr": "1e-3"}, {"lr": "0.01"}, {"lr": 1e-2, "width": "32"}) == [DEFAULTS, {**DEFAULTS, "lr": 1e-2}]
    assert problems_of(points, {"lr": "0.01"}, {"lr": "0.02"}, trials=2) == [
        "--trials must be at least 3 for the task's defaults and 2 points to try, but got 2. "
        "Raise it or leave out a --try."
    ]
    assert len(points({"lr": "0.01"}, {"lr": "0.01"}, trials=2)) == 2
