"""Show what a search may vary of a task, what its config refuses, and what a wrong task is told."""

import gc
import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from searchlight.trainables.context import Context
from searchlight.trainables.precision import Precision
from searchlight.trainables.task import Task, TaskConfig, searchable
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.toy_models import Adversaries, Regression, RegressionConfig


def test_searchable_range_keeps_default_and_bounds():
    field = searchable(3e-4, low=1e-5, high=1e-2, log=True, description="step size")
    assert (field.default, field.description) == (3e-4, "step size")
    assert field.json_schema_extra["search"] == {
        "low": 1e-5, "high": 1e-2, "log": True, "step": None, "trust": "medium"
    }  # fmt: skip
    for end in (1, 5):
        field = searchable(end, low=1, high=5, step=2)
        assert (field.default, field.json_schema_extra["search"]["step"]) == (end, 2)


def test_searchable_choices_and_conditions_are_plain_values():
    field = searchable(Precision.FP32, choices=list(Precision), when={"precision": Precision.FP16})
    space = field.json_schema_extra["search"]
    assert space == {"choices": ["fp32", "bf16", "fp16"], "when": {"precision": ["fp16"]}, "trust": "medium"}
    assert all(type(choice) is str for choice in space["choices"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(({"choices": [1, 2], **more}, "a range or choices, but got both") for more in ({"low": 0}, {"high": 3})),
        *(({"choices": [1, 2], **more}, "a range or choices, but got both") for more in ({"log": True}, {"step": 1})),
        *(
            ({"size": True, **more}, "choices, or size=True, but got both")
            for more in ({"low": 1, "high": 2}, {"log": True})
        ),
        ({"default": 3, "choices": [1, 2]}, r"must be among its choices, but got 3 and \[1, 2\]"),
        ({"choices": [1, (2,)]}, r"must be text, numbers, booleans or None, but got \(2,\)"),
        ({"low": 0}, "must get low and high, or choices, but got low=0, high=None"),
        ({"high": 2}, "must get low and high, or choices, but got low=None, high=2"),
        ({"low": 1, "high": 1}, "must have low < high, but got 1..1. Swap the bounds"),
        ({"low": math.nan, "high": 2}, "must have low < high, but got nan..2"),
        ({"default": 9, "low": 0, "high": 2}, "must lie in its range, but got 9 and 0..2"),
        ({"default": math.nan, "low": 0, "high": 2}, "must lie in its range, but got nan"),
        ({"low": 0, "high": 2, "log": True}, "must be positive with log=True, but got 0..2"),
        ({"low": 1, "high": 2, "log": True, "step": 1}, "must get log=True or a step, but got both, step=1"),
    ],
)
def test_impossible_search_space_raises_value_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        searchable(**{"default": 1, **arguments})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 1.0}, "Extra inputs are not permitted"),
        ({"precision": "fp8"}, "Input should be 'fp32', 'bf16', 'fp16' or 'auto'"),
        ({"accumulation": 0}, "greater than or equal to 1"),
        ({"epochs": 0}, "greater than or equal to 1"),
        ({"max_grad_norm": 0.0}, "greater than 0"),
        ({"max_grad_norm": math.nan}, "finite number"),
        ({"ema_decay": 1.0}, "less than 1"),
        ({"loss_scale": math.inf}, "finite number"),
        ({"max_consecutive_skips": -1}, "greater than or equal to 0"),
        ({"seed": -1}, "greater than or equal to 0"),
    ],
)
def test_config_refuses_what_cannot_be_trained(values, message):
    with pytest.raises(ValidationError, match=message) as caught:
        RegressionConfig(**values)
    assert caught.value.error_count() == 1  # one line on the command line


def test_task_has_the_config_it_was_declared_with():
    assert Regression.config_class() is RegressionConfig
    assert types.new_class("Heir", (Regression,)).config_class() is RegressionConfig
    assert Adversaries.config_class() is TaskConfig
    with pytest.raises(TypeError, match=r"Bare must be declared as class Bare\(Task\[ItsConfig\]\)"):
        types.new_class("Bare", (Task,)).config_class()


class Built(Task[TaskConfig]):
    """A task of two modules, whose `build` ends with `change`."""

    objective = "val/loss"

    def __init__(self, change: Callable[["Built"], Any]) -> None:
        super().__init__(TaskConfig())
        self.change = change

    def build(self) -> None:
        self.modules = {"first": nn.Linear(2, 1), "second": nn.Linear(2, 1)}
        self.optimizers = {name: own(module) for name, module in self.modules.items()}
        self.change(self)

    def train_batches(self, epoch: int) -> list[torch.Tensor]:
        return [torch.ones(3, 2)]

    def loss(self, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
        return sum(module(batch).square().mean() for module in self.modules.values()), len(batch)

    def evaluate(self) -> dict[str, float]:
        return {self.objective: 1.0}


def own(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def update(**names: list[str]) -> Callable[[Built], None]:
    return lambda task: setattr(task, "updates", names)


EMPTY = "Built.build must fill self.modules and self.optimizers, but left one of them empty"
WRONG: dict[str, tuple[Callable[[Built], Any], str]] = {
    "no modules": (lambda task: task.modules.clear(), EMPTY),
    "no optimizers": (lambda task: task.optimizers.clear(), EMPTY),
    "modules are no dict": (
        lambda task: setattr(task, "modules", task.modules["first"]),
        r"must make self\.modules a dict by name, but got Linear",
    ),
    "optimizers are no dict": (
        lambda task: setattr(task, "optimizers", task.optimizers["first"]),
        r"must make self\.optimizers a dict by name, but got SGD",
    ),
    "owned by none": (  # E53
        lambda task: task.optimizers.pop("second"),
        r"must give each trainable parameter to an optimizer, but second\.weight, second\.bias has none",
    ),
    "owned twice": (  # E53
        lambda task: task.optimizers.update(third=own(task.modules["first"])),
        "each parameter must belong to one optimizer, but 'first' and 'third'",
    ),
    "half": (lambda task: task.modules["second"].half(), "must be fp32, but got second.weight in float16"),  # E54
    "update lacks one": (update(only=["first"]), r"must name each of \['first', 'second'\] once, but got \['first'\]"),
    "update doubles": (update(a=["first", "second"], b=["second"]), r"got \['first', 'second', 'second'\]"),
    "update of a stranger": (update(a=["first", "second", "third"]), r"once, but got \['first', 'second', 'third'\]"),
    "schedule of a stranger": (
        lambda task: task.schedulers.append(torch.optim.lr_scheduler.StepLR(own(nn.Linear(2, 1)), 1)),
        r"must each have an `optimizer` of self\.optimizers, but StepLR has not",
    ),
    "schedule without an optimizer": (lambda task: task.schedulers.append(object()), r"optimizers, but object has not"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_build_raises_before_training(wrong):
    change, message = WRONG[wrong]
    with pytest.raises(ValueError, match=message):
        TrialTrainer(Built(change))


def test_frozen_parameter_needs_no_optimizer():
    def freeze(task: Built) -> None:
        del task.optimizers["second"]
        task.modules["second"].requires_grad_(False)

    assert TrialTrainer(Built(freeze)).run_epoch()["train/updates"] == 1


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"val/lost": 1.0}, r"evaluate must return the objective 'val/loss', but got .*val/lost"),
        (None, "evaluate must return a dict of metrics by name, but got NoneType"),
    ],
)
def test_evaluate_without_the_objective_raises_value_error(metrics, message):
    training = TrialTrainer(Built(lambda task: setattr(task, "evaluate", lambda: metrics)))
    with pytest.raises(ValueError, match=message):
        training.run_epoch()


def test_task_without_a_search_has_files_as_long_as_it_lives(tmp_path):
    class Prepared(Regression):
        @classmethod
        def prepare(cls, config, folder):
            (folder / "seed").write_text(str(config.seed))

    alone = Prepared(RegressionConfig(seed=3))
    assert (alone.files / "seed").read_text() == "3"
    folder = alone.files
    assert alone.files == folder
    del alone
    gc.collect()
    assert not folder.exists()
    assert Prepared(RegressionConfig(), Context(files=tmp_path)).files == tmp_path
    assert not list(tmp_path.iterdir())
