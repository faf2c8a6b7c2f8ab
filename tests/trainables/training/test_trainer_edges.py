"""What stays out of training: an evaluation, a skipped window, another rank count, the numbers of build."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toy_models import Regression, RegressionConfig, identical, timeless
from trainables.checkpoint.selection import find_resume_checkpoint
from trainables.context import Context
from trainables.task import TaskConfig
from trainables.training.trainer import TrialTrainer, train

NAN = float("nan")


def test_what_an_evaluation_notes_is_no_term_of_the_training():
    class Evaluated(Regression):
        def loss(self, batch: Any) -> tuple[Tensor, int]:
            self.log("training", float(self.modules["model"].training))
            return super().loss(batch)

        def evaluate(self) -> dict[str, Any]:
            self.loss((self.inputs, self.targets))
            return super().evaluate()

    reports = list(train(Evaluated(RegressionConfig(epochs=2))))
    assert [report["train/training"] for report in reports] == [1.0, 1.0]


def test_a_skipped_window_leaves_no_term():
    class Spoiled(Regression):
        def loss(self, batch: Any) -> tuple[Tensor, int]:
            loss, weight = super().loss(batch)
            loss = loss * (NAN if weight == 2 else 1.0)  # the last of 22 samples in batches of 4
            self.log("term", loss)
            return loss, weight

        def after_update(self, report: Any) -> None:
            self.log("windows", 1.0)

    report = TrialTrainer(Spoiled(RegressionConfig())).run_epoch()
    assert report["amp/skipped"] == 1
    assert report["train/term"] == report["train/term"]  # no NaN
    assert report["train/windows"] == 1.0


@pytest.mark.parametrize("name", ["loss", "grad_norm", "updates"])
def test_a_term_cannot_take_the_name_of_what_is_reported_anyway(name):
    with pytest.raises(ValueError, match=f"log must get a name that is not reported already, but got '{name}'"):
        Regression(RegressionConfig()).log(name, 1.0)


def test_an_evaluation_gives_a_sign_of_life_before_it_and_after_it():
    events = []

    class Noting(Regression):
        def evaluate(self) -> dict[str, Any]:
            events.append("evaluate")
            return super().evaluate()

    training = TrialTrainer(Noting(RegressionConfig()))
    training.on_progress = lambda: events.append("moved")
    training.evaluate()
    assert events == ["moved", "evaluate", "moved"]


class Cells(Regression):
    """Keeps a state in a buffer that is None at first and as long as the last batch then."""

    def build(self) -> None:
        super().build()
        self.modules["model"].register_buffer("state", None)

    def predict(self, inputs: Tensor) -> Tensor:
        model = self.modules["model"]
        outputs = super().predict(inputs)
        before = 0.0 if model.state is None else model.state.mean()
        model.state = 0.5 * before + outputs.detach()
        return outputs + 0.1 * before


def test_what_an_evaluation_does_to_the_state_of_a_cell_does_not_stay():
    training = TrialTrainer(Cells(RegressionConfig()))
    training.run_epoch()
    model = training.task.modules["model"]
    before = model.state.clone()
    training.evaluate()
    assert torch.equal(model.state, before)
    assert len(before) == 2  # the last batch of 22 samples, and not the 22 of the evaluation


@pytest.mark.parametrize("windows", [None, 3], ids=["between-epochs", "in-an-epoch"])
def test_a_cell_whose_state_changes_its_shape_goes_on_from_a_checkpoint(tmp_path, windows):  # H76
    config = RegressionConfig(epochs=3)
    expected = [timeless(report) for report in train(Cells(config))]
    first = TrialTrainer(Cells(config))
    reports = [timeless(first.run_epoch())]
    if windows:
        assert first.run_epoch(lambda: first.windows == windows) is None
    first.save(tmp_path / "state.pt")
    second = TrialTrainer(Cells(config))
    second.load(tmp_path / "state.pt")
    reports += [timeless(second.run_epoch()) for _ in range(2)]
    assert identical(reports, expected)


def test_build_draws_other_numbers_than_the_first_epoch():
    class Drawing(Regression):
        def build(self) -> None:
            self.drawn = [torch.randperm(50, generator=self.context.generator), torch.rand(5)]
            super().build()

        def train_batches(self, epoch: int) -> Any:
            self.drawn += [torch.randperm(50, generator=self.context.generator), torch.rand(5)]
            return super().train_batches(epoch)

    training = TrialTrainer(Drawing(RegressionConfig()))
    training.run_epoch()
    split, weights, order, dropout = training.task.drawn
    assert not torch.equal(split, order)
    assert not torch.equal(weights, dropout)


def test_the_averages_of_a_layer_that_is_thawed_later_are_there():
    class Thawing(Regression):
        def build(self) -> None:
            super().build()
            self.modules["model"][0].requires_grad_(False)

        def train_batches(self, epoch: int) -> Any:
            self.modules["model"][0].requires_grad_(epoch > 0)
            return super().train_batches(epoch)

    training = TrialTrainer(Thawing(RegressionConfig(ema_decay=0.9)))
    before = copy.deepcopy(training.task.modules["model"][0].weight.detach())
    for _ in range(2):
        training.run_epoch()
    weight = training.task.modules["model"][0].weight
    average = training.task.updaters["train"].ema.state_dict()["shadow"]["model.0.weight"]
    assert not torch.equal(weight, before)
    assert not torch.equal(average, weight)


def test_a_context_that_is_not_that_of_the_process_group_is_refused():
    with pytest.raises(ValueError, match=r"world_size must be that of the process group, 1, but got 2"):
        TrialTrainer(Regression(RegressionConfig(), Context(rank=0, world_size=2)))


def test_a_metric_that_is_no_number_is_named():
    class Odd(Regression):
        def evaluate(self) -> dict[str, Any]:
            return {"val/loss": 1.0, "val/other": None}

    with pytest.raises(ValueError, match=r"a number or \(mean, weight\) for 'val/other', but got None"):
        TrialTrainer(Odd(RegressionConfig())).run_epoch()


def test_a_checkpoint_from_the_middle_of_an_epoch_is_for_as_many_ranks_as_saved_it(tmp_path):  # H80
    training = TrialTrainer(Regression(RegressionConfig()))
    training.run_epoch()
    training.save(tmp_path / "epoch-1-a.pt")
    training.run_epoch(lambda: training.windows == 2)
    training.save(tmp_path / "midway-a.pt")
    candidates = [str(tmp_path / "epoch-1-a.pt")]
    assert find_resume_checkpoint(tmp_path, 1, candidates, ranks=1)[0] == tmp_path / "midway-a.pt"
    assert find_resume_checkpoint(tmp_path, 1, candidates, ranks=2)[0] == tmp_path / "epoch-1-a.pt"


def test_modules_may_have_any_name(tmp_path: Path):
    class Named(Regression):
        def build(self) -> None:
            super().build()
            self.modules["items"] = nn.Linear(1, 1).requires_grad_(False)

    training = TrialTrainer(Named(RegressionConfig()))
    training.run_epoch()
    training.save(tmp_path / "state.pt")
    training.load(tmp_path / "state.pt")


def test_total_updates_count_windows():
    assert TaskConfig(accumulation=4, epochs=3).total_updates(9) == 9
