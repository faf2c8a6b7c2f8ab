"""The task interface: what a search may vary, what a config refuses, and what a wrong task is told."""

import math
import types
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.trainables.toy_models import Adversaries, Regression, RegressionConfig
from trainables.context import Context
from trainables.precision import Precision
from trainables.task import Task, TaskConfig, searchable
from trainables.training.trainer import TrialTrainer


def space(field: Any) -> dict[str, Any]:
    return field.json_schema_extra["search"]


# searchable


def test_a_range_is_kept_with_its_default():
    field = searchable(3e-4, low=1e-5, high=1e-2, log=True, description="step size")
    assert (field.default, field.description) == (3e-4, "step size")
    assert space(field) == {"low": 1e-5, "high": 1e-2, "log": True, "step": None}


def test_the_ends_of_a_range_may_be_the_default():
    assert space(searchable(1, low=1, high=5, step=2))["step"] == 2
    assert searchable(5, low=1, high=5).default == 5


def test_choices_and_conditions_are_kept_as_plain_values():
    field = searchable(Precision.FP32, choices=list(Precision), when={"precision": Precision.FP16})
    assert space(field) == {"choices": ["fp32", "bf16", "fp16"], "when": {"precision": ["fp16"]}}
    assert all(type(choice) is str for choice in space(field)["choices"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"default": 1, "choices": [1, 2], "low": 0}, "a range or choices, but got both"),
        ({"default": 1, "choices": [1, 2], "high": 3}, "a range or choices, but got both"),
        ({"default": 1, "choices": [1, 2], "log": True}, "a range or choices, but got both"),
        ({"default": 1, "choices": [1, 2], "step": 1}, "a range or choices, but got both"),
        ({"default": 3, "choices": [1, 2]}, r"must be among its choices, but got 3 and \[1, 2\]"),
        ({"default": 1, "choices": []}, r"must be among its choices, but got 1 and \[\]"),
        ({"default": 1}, "must get low and high, or choices, but got low=None, high=None"),
        ({"default": 1, "low": 0}, "must get low and high, or choices, but got low=0, high=None"),
        ({"default": 1, "high": 2}, "must get low and high, or choices, but got low=None, high=2"),
        ({"default": 1, "low": 2, "high": 0}, r"must have low < high, but got 2..0. Swap the bounds"),
        ({"default": 1, "low": 1, "high": 1}, "must have low < high, but got 1..1"),
        ({"default": 1, "low": math.nan, "high": 2}, "must have low < high, but got nan..2"),
        ({"default": 9, "low": 0, "high": 2}, "must lie in its range, but got 9 and 0..2"),
        ({"default": math.nan, "low": 0, "high": 2}, "must lie in its range, but got nan"),
        ({"default": 1, "low": 0, "high": 2, "log": True}, "must be positive with log=True, but got 0..2"),
    ],
)
def test_an_impossible_search_space_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        searchable(**arguments)


# TaskConfig


def test_a_config_crosses_a_process_as_plain_values_and_comes_back():
    config = RegressionConfig(precision="bf16", lr=0.03, accumulation=2, ema_decay=0.9)
    plain = config.model_dump(mode="json")
    assert type(plain["precision"]) is str
    assert RegressionConfig.model_validate(plain) == config


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
        ({"lr": math.inf}, "finite number"),
    ],
)
def test_a_config_refuses_what_cannot_be_trained(values, message):
    with pytest.raises(ValidationError, match=message) as caught:
        RegressionConfig(**values)
    assert caught.value.error_count() == 1  # one line on the command line


def test_a_config_cannot_be_changed_afterwards():
    with pytest.raises(ValidationError, match="frozen"):
        RegressionConfig().lr = 1.0


def test_a_task_knows_the_config_that_it_was_declared_with():
    class Heir(Regression):
        pass

    assert Regression.config_class() is RegressionConfig
    assert Heir.config_class() is RegressionConfig
    assert Adversaries.config_class() is TaskConfig


def test_a_task_that_was_declared_without_a_config_is_told_how():
    class Bare(Task):
        pass

    with pytest.raises(TypeError, match=r"Bare must be declared as class Bare\(Task\[ItsConfig\]\)"):
        Bare.config_class()


# What build must leave behind


@pytest.mark.parametrize("method", ["build", "train_batches", "loss", "evaluate"])
def test_a_task_must_fill_in_each_of_its_four_methods(method):
    methods = {name: lambda self: None for name in ("build", "train_batches", "loss", "evaluate") if name != method}
    incomplete = types.new_class("Incomplete", (Task[TaskConfig],), exec_body=lambda body: body.update(methods))
    with pytest.raises(TypeError, match=rf"abstract.*\b{method}\b"):
        incomplete(TaskConfig())


class Built(Task[TaskConfig]):
    """A task whose `build` can be told what to get wrong."""

    objective: ClassVar[str] = "val/loss"

    def __init__(self, wrong: str) -> None:
        super().__init__(TaskConfig())
        self.wrong = wrong

    def build(self) -> None:
        self.modules = {"first": nn.Linear(2, 1), "second": nn.Linear(2, 1)}
        self.optimizers = {name: torch.optim.SGD(module.parameters(), lr=0.1) for name, module in self.modules.items()}
        match self.wrong:
            case "no modules":
                self.modules = {}
            case "no optimizers":
                self.optimizers = {}
            case "loose parameter":
                del self.optimizers["second"]
            case "frozen parameter":
                del self.optimizers["second"]
                self.modules["second"].requires_grad_(False)
            case "owned twice":
                self.optimizers["third"] = torch.optim.Adam(self.modules["first"].parameters())
            case "half parameters":
                self.modules["second"].half()
            case "update lacks one":
                self.updates = {"only": ["first"]}
            case "update names one twice":
                self.updates = {"a": ["first", "second"], "b": ["second"]}
            case "update of a stranger":
                self.updates = {"a": ["first", "second", "third"]}
            case "schedule of a stranger":
                stranger = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
                self.schedulers = [torch.optim.lr_scheduler.StepLR(stranger, 1)]
            case "schedule without an optimizer":
                self.schedulers = [object()]

    def train_batches(self, epoch: int) -> list[torch.Tensor]:
        return [torch.ones(3, 2)]

    def loss(self, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
        return sum(module(batch).square().mean() for module in self.modules.values()), len(batch)

    def evaluate(self) -> dict[str, float]:
        return {"val/loss": 1.0} if self.wrong != "no objective" else {"val/lost": 1.0}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("no modules", "Built.build must fill self.modules and self.optimizers, but left one of them empty"),
        ("no optimizers", "Built.build must fill self.modules and self.optimizers, but left one of them empty"),
        pytest.param(
            "loose parameter",
            r"must give each trainable parameter to an optimizer, but second\.weight, second\.bias has none",
            id="owned-by-none-E53",
        ),
        pytest.param("owned twice", "each parameter must belong to one optimizer, but 'first' and 'third'", id="E53"),
        pytest.param("half parameters", "'second' must be fp32, but got second.weight in float16", id="E54"),
        ("update lacks one", r"updates must name each of \['first', 'second'\] once, but got \['first'\]"),
        ("update names one twice", r"once, but got \['first', 'second', 'second'\]"),
        ("update of a stranger", r"once, but got \['first', 'second', 'third'\]"),
        ("schedule of a stranger", r"must each have an `optimizer` of self\.optimizers, but StepLR has not"),
        ("schedule without an optimizer", r"must each have an `optimizer` of self\.optimizers, but object has not"),
    ],
)
def test_a_wrong_build_is_refused_before_training(wrong, message):
    with pytest.raises(ValueError, match=message):
        TrialTrainer(Built(wrong))


@pytest.mark.parametrize("right", ["", "frozen parameter"])
def test_a_right_build_is_trained(right):
    report = TrialTrainer(Built(right)).run_epoch()
    assert report is not None
    assert report["train/updates"] == 1


def test_evaluate_must_return_the_objective():
    with pytest.raises(ValueError, match=r"evaluate must return the objective 'val/loss', but got .*val/lost"):
        TrialTrainer(Built("no objective")).run_epoch()


def test_without_a_search_a_task_prepares_its_files_itself(tmp_path):
    class Prepared(Regression):
        @classmethod
        def prepare(cls, config, folder):
            (folder / "seed").write_text(str(config.seed))

    alone = Prepared(RegressionConfig(seed=3))
    assert (alone.files / "seed").read_text() == "3"
    assert alone.files == alone.files
    assert Prepared(RegressionConfig(), Context(files=tmp_path)).files == tmp_path
    assert not list(tmp_path.iterdir())
