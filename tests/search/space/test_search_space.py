from typing import Annotated, Literal

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import BaseModel, ConfigDict, Field

from searchlight.search.errors import UsageError
from searchlight.search.space.search_space import list_size_fields, resolve_space, restore_space
from searchlight.trainables.flatten import flatten
from searchlight.trainables.task import TaskConfig, searchable
from tests.search.refusals import problems_of


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    depth: int = searchable(2, low=1, high=8)
    kind: Literal["a", "b"] = "a"


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
    layers: int = searchable(2, low=1, high=6)
    hidden: Annotated[int, Field(ge=1, le=512)] = searchable(16, size=True)
    clip: float | None = None
    bias: bool = True
    name: str = "a"
    scale_growth: int = searchable(100, low=10, high=1000, log=True, when={"precision": "fp16"})
    inner: Inner = Inner()


def distributions(space):
    return {parameter.name: parameter.distribution for parameter in space.parameters}


def test_declared_fields_and_precision_are_the_space():
    assert distributions(resolve_space(Config, {}, {})) == {
        "precision": CategoricalDistribution(["fp32", "bf16", "fp16"]),
        "lr": FloatDistribution(1e-5, 1e-1, log=True),
        "layers": IntDistribution(1, 6),
        "scale_growth": IntDistribution(10, 1000, log=True),
        "inner.depth": IntDistribution(1, 8),
    }


def test_size_is_declared_and_not_searched():
    assert list_size_fields(Config) == ["hidden"]
    assert "hidden" not in distributions(resolve_space(Config, {}, {}))
    assert distributions(resolve_space(Config, {}, {"hidden": "8..16"}))["hidden"] == IntDistribution(8, 16)


def test_fixed_parameter_is_not_searched_and_has_its_type():
    space = resolve_space(Config, {"lr": "1e-2", "clip": "none", "bias": "false", "inner.depth": "3"}, {})
    assert {"lr", "inner.depth"}.isdisjoint(distributions(space))
    config = space.build_config({})
    assert (config.lr, config.clip, config.bias, config.inner.depth) == (1e-2, None, False, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-4..1e-2:log", FloatDistribution(1e-4, 1e-2, log=True)),
        ("1e-4..1e-2", FloatDistribution(1e-4, 1e-2, log=True)),  # the scale that the field declares
        ("1e-4..1e-2:linear", FloatDistribution(1e-4, 1e-2)),
        ("0..1:linear:step=0.25", FloatDistribution(0.0, 1.0, step=0.25)),
        ("0.2..0.3:linear:step=0.1", FloatDistribution(0.2, 0.3, step=0.1)),
        ("0.1,0.2", CategoricalDistribution([0.1, 0.2])),
    ],
)
def test_searched_range_replaces_the_declared_one(text, expected):
    assert distributions(resolve_space(Config, {}, {"lr": text}))["lr"] == expected


def test_field_without_a_declared_range_can_be_searched():
    space = resolve_space(Config, {}, {"hidden": "8..64:step=8", "bias": "true,false", "inner.kind": "a,b"})
    assert distributions(space)["hidden"] == IntDistribution(8, 64, step=8)
    assert distributions(space)["bias"] == CategoricalDistribution([True, False])
    assert distributions(space)["inner.kind"] == CategoricalDistribution(["a", "b"])


@pytest.mark.parametrize(
    ("fixed", "searched", "message"),
    [
        ({"hiden": 3}, {}, "--set hiden must name a parameter, but there is no 'hiden'. Did you mean 'hidden'?"),
        ({}, {"leyers": "1..2"}, "--search leyers must name a parameter, but there is no 'leyers'. "
                                 "Did you mean 'layers'?"),
        ({"hidden": "abc"}, {}, "--set hidden must be a valid integer, but got 'abc'."),
        ({"hidden": "0"}, {}, "--set hidden must be greater than or equal to 1, but got '0'."),
        ({"lr": "nan"}, {}, "--set lr must be a finite number, but got 'nan'."),
        ({"precision": "fp8"}, {}, "--set precision must be 'fp32', 'bf16', 'fp16' or 'auto', but got 'fp8'."),
        ({}, {"lr": "1e-2..1e-5"}, "--search lr must have low < high, but got 1e-2..1e-5. Swap the bounds."),
        ({}, {"lr": "-1..1"}, "--search lr must be above 0 on a log scale, but got -1..1. "
                              "Raise the lower bound or say :linear."),
        ({}, {"lr": "a..b"}, "--search lr must be a valid number, but got 'a'."),
        ({}, {"hidden": "8-64"}, "--search hidden must be like 1..8 or 1,2,4, but got '8-64'."),
        ({}, {"lr": "1e-3..1e-2:lag"}, "--search lr must have the options log, linear or step=..., but got 'lag'."),
        ({}, {"hidden": "1..1000"}, "--search hidden must be less than or equal to 512, but got '1000'."),
        ({}, {"layers": "1.5..3"}, "--search layers must be a valid integer, but got '1.5'."),
        ({}, {"layers": "1..3:step=9"}, "--search layers must have a step between 0 and 2, but got 9."),
        ({}, {"hidden": "8..64:step=9"}, "--search hidden must have a step that leads from 8 to 64, but got 9."),
        ({}, {"hidden": "8..64:step=8:log"}, "--search hidden must have a step or a log scale, but got both in "
                                             "'8..64:step=8:log'."),
        ({}, {"precision": "fp32"}, "--search precision must be a range low..high or at least two different choices, "
                                    "but got 'fp32'. Fix one value with --set precision=fp32."),
        ({}, {"name": "0.001:1"}, "--search name must be a range low..high or at least two different choices, "
                                  "but got '0.001:1'. Use name=0.001..1."),
        ({}, {"name": "0.001-1:log"}, "--search name must be a range low..high or at least two different choices, "
                                      "but got '0.001-1:log'. Use name=0.001..1:log."),
        ({}, {"name": "[1e-3, 1]"}, "--search name must be a range low..high or at least two different choices, "
                                    "but got '[1e-3, 1]'. Use name=1e-3..1."),
        ({}, {"name": "loguniform(0.1,1)"}, "--search name must be a range low..high or at least two different "
                                            "choices, but got 'loguniform(0.1,1)'. Use name=0.1..1:log."),
        ({}, {"name": "tune.uniform(0.1, 1)"}, "--search name must be a range low..high or at least two different "
                                               "choices, but got 'tune.uniform(0.1, 1)'. Use name=0.1..1."),
        ({}, {"bias": "0..1"}, "--search bias must be a list of choices like a,b, but got '0..1': "
                               "it is not a number."),
        ({"lr": "1e-3"}, {"lr": "1e-3..1e-2"}, "lr must be set or searched, but got both. Drop one of them."),
    ],
)  # fmt: skip
def test_mistake_is_refused_in_one_line(fixed, searched, message):
    assert problems_of(resolve_space, Config, fixed, searched) == [message]


def test_two_dots_in_a_choice_of_text_are_no_range():
    class WithPath(TaskConfig):
        path: str = ""

    space = resolve_space(WithPath, {}, {"path": "../a,../b"})
    assert distributions(space)["path"] == CategoricalDistribution(["../a", "../b"])


def suggested(space, trials=30):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [space.suggest(study.ask()) for _ in range(trials)]


def test_conditional_parameter_is_suggested_where_it_holds():
    seen = suggested(resolve_space(Config, {}, {}))
    assert {values["precision"] for values in seen} == {"fp32", "bf16", "fp16"}
    assert all(("scale_growth" in values) == (values["precision"] == "fp16") for values in seen)
    assert "scale_growth" in suggested(resolve_space(Config, {"precision": "fp16"}, {}), 1)[0]
    assert "scale_growth" not in suggested(resolve_space(Config, {"precision": "bf16"}, {}), 1)[0]


def test_condition_may_list_several_values():
    class Half(TaskConfig):
        growth: int = searchable(100, low=10, high=1000, when={"precision": ["fp16", "bf16"]})

    space = resolve_space(Half, {}, {})
    active = [
        precision for precision in ("fp32", "fp16", "bf16") if "growth" in space.parse_point({"precision": precision})
    ]
    assert active == ["fp16", "bf16"]


def test_condition_on_none_needs_the_parameter():
    class Scheduled(TaskConfig):
        sched: str | None = searchable("cosine", choices=["cosine", None], when={"precision": "fp16"})
        decay: float = searchable(0.1, low=0.0, high=1.0, when={"sched": [None]})

    space = resolve_space(Scheduled, {}, {})
    seen = suggested(space)
    assert {("sched" in values, values.get("sched"), "decay" in values) for values in seen} == {
        (False, None, False), (True, "cosine", False), (True, None, True)
    }  # fmt: skip


def test_circular_conditions_are_refused():
    class Circle(TaskConfig):
        a: int = searchable(1, low=1, high=2, when={"b": 1})
        b: int = searchable(1, low=1, high=2, when={"a": 1})

    with pytest.raises(UsageError, match=r"must not depend on each other in a circle, but \['a', 'b'\] do"):
        resolve_space(Circle, {}, {})


def test_searched_parameter_or_choice_that_is_gone_is_refused_in_a_line():
    kinds = CategoricalDistribution(["a", "b", "c", "d"])
    begun = {"lr": FloatDistribution(1, 2), "inner.kind": kinds, "rate": IntDistribution(1, 2)}
    gone, refused = problems_of(restore_space, Config, begun, {"momentum": 0.9})
    assert gone.startswith("the task must have the parameter rate, which is searched, but no longer has it.")
    assert refused.startswith("the task must accept inner.kind=c,d, which is searched, but no longer does.")
    kept = {"precision": CategoricalDistribution(["fp32", "bf16"]), "clip": CategoricalDistribution([0.5, None])}
    assert distributions(restore_space(Config, kept, {"momentum": 0.9})) == kept


@settings(max_examples=20)
@given(seed=st.integers(0, 2**16))
def test_suggestion_is_a_valid_config_that_survives_json(seed):
    space = resolve_space(Config, {"bias": "false"}, {"clip": "0.1..2"})
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
    values = space.suggest(trial)
    config = space.build_config(values)
    assert Config.model_validate(config.model_dump(mode="json")) == config
    assert {name: flatten(config.model_dump(mode="json"))[name] for name in values} == values
