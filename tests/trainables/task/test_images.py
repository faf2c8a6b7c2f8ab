"""Pictures that a task draws of itself: of which reports, in which state, where they lie, and what is no picture."""

import io
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from tests.trainables.toy_models import Regression, RegressionConfig
from tests.trainables.worker.local_worker import metrics, stretch_in, workers
from trainables import checkpoint
from trainables.context import Context
from trainables.filesystem.paths import StoragePath, parse_path, with_suffix_added
from trainables.task import images
from trainables.training import evaluation
from trainables.training.trainer import TrialTrainer, train
from trainables.update import Ema

LOSSES = (0.5, 0.7, 0.4, 0.4)  # of the epochs: the first and the third are better than all before them
TASK = f"{__name__}:Drawing"


class Drawing(Regression):
    """Draws the number of its epoch."""

    drawn: ClassVar[Any] = None  # instead

    def train_batches(self, epoch: int) -> Any:
        self.epoch = epoch + 1
        return super().train_batches(epoch)

    def evaluate(self) -> dict[str, Any]:
        return {"val/loss": LOSSES[self.epoch - 1]}

    def pictures(self) -> Any:
        return {"epoch": np.full((2, 5, 3), self.epoch, dtype=np.uint8)} if self.drawn is None else self.drawn


class Upwards(Drawing):
    """More is better."""

    mode = "max"


def drawn_in(folder: StoragePath) -> dict[str, list[str]]:
    """The pictures beside each checkpoint, by its name."""
    return {
        path.name.removesuffix(".pictures"): sorted(file.name for file in path.iterdir())
        for path in folder.glob("*.pictures")
    }


def value_of(path: StoragePath) -> int:
    """The one value that all of a picture has."""
    picture = np.asarray(Image.open(io.BytesIO(path.read_bytes())))
    assert (picture.shape, picture.dtype) == ((2, 5, 3), np.uint8)
    (value,) = set(picture.ravel().tolist())
    return value


# When


@pytest.mark.parametrize(("task", "expected"), [(Drawing, [1, 3]), (Upwards, [1, 2])])
def test_a_report_that_is_better_than_all_before_it_is_drawn_and_no_other(task, expected):
    training = TrialTrainer(task(RegressionConfig(epochs=4)))
    found = []
    for epoch in range(1, 5):
        training.run_epoch()
        found += [epoch] if training.pictures else []
    assert found == expected


def test_what_is_drawn_lies_beside_the_checkpoint_of_its_report(anywhere):
    reports = list(workers(task=TASK).run(stretch_in(anywhere, until=4)))
    assert [report.epoch for report in reports] == [1, 2, 3, 4]
    assert drawn_in(anywhere / "trial-0") == {"epoch-1-a.pt": ["epoch.png"], "epoch-3-a.pt": ["epoch.png"]}
    for report in (reports[0], reports[2]):
        assert value_of(with_suffix_added(parse_path(report.checkpoint), images.SUFFIX) / "epoch.png") == report.epoch
    best = images.find_best_images(anywhere / "trial-0")
    assert best is not None
    assert value_of(best / "epoch.png") == 3


def test_a_trial_that_goes_on_from_a_checkpoint_knows_what_its_best_was(anywhere):
    (*_, last) = workers(task=TASK).run(stretch_in(anywhere, until=2))
    list(workers(task=TASK).run(stretch_in(anywhere, epoch=2, until=4, start=last.checkpoint)))
    assert set(drawn_in(anywhere / "trial-0")) == {"epoch-1-a.pt", "epoch-3-a.pt"}


def test_a_copy_of_another_trial_has_a_best_of_its_own(stretch, tmp_path):
    (first, *_) = workers(task=TASK).run(stretch(until=2))
    start = first.checkpoint
    copied = replace(stretch(trial=1, epoch=1, until=2, start=start), copied=start)
    list(workers(task=TASK).run(copied))
    assert set(drawn_in(tmp_path / "trial-1")) == {"epoch-2-a.pt"}, "worse than the other's first, but its own first"


def test_a_checkpoint_that_is_deleted_takes_its_pictures_with_it(anywhere):
    for report in workers(task=TASK).run(stretch_in(anywhere, until=1)):
        checkpoint.delete(parse_path(report.checkpoint))
    assert list((anywhere / "trial-0").iterdir()) == []
    assert images.find_best_images(anywhere / "trial-0") is None


# In which state


class Looking(Regression):
    """Notes in which state it is evaluated and drawn."""

    def build(self) -> None:
        super().build()
        self.states: dict[str, Any] = {}

    def look(self, where: str) -> None:
        model = self.modules["model"]
        model(self.inputs)  # in training mode it would change the statistics of batch norm
        self.states[where] = {
            "training": [part.training for part in model.modules()],
            "autograd": torch.is_grad_enabled(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "state": {name: value.clone() for name, value in model.state_dict().items()},
        }

    def evaluate(self) -> dict[str, Any]:
        self.look("evaluated")
        return super().evaluate()

    def pictures(self) -> Any:
        self.look("drawn")
        return {"one": np.zeros((1, 1, 3), dtype=np.uint8)}


def test_it_is_drawn_as_it_was_evaluated_and_trains_on_as_it_was():
    task = Looking(RegressionConfig(ema_decay=0.9, precision="bf16"))
    training = TrialTrainer(task)
    training.run_epoch()
    evaluated, drawn = task.states["evaluated"], task.states["drawn"]
    weights, own = drawn.pop("state"), task.modules["model"].state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in evaluated.pop("state").items())
    assert evaluated == drawn == {"training": [False] * len(drawn["training"]), "autograd": False, "autocast": False}
    assert not torch.equal(own["0.weight"], weights["0.weight"]), "the averages"
    assert task.modules["model"].training


def test_what_is_drawn_changes_no_report(stretch, tmp_path, monkeypatch):
    task = "tests.trainables.toy_models:Regression"
    plain = metrics(list(workers(task=task).run(stretch(trial=0))))
    monkeypatch.setattr(Regression, "pictures", lambda task: {"noise": (255 * torch.rand(3, 3, 3)).byte().numpy()})
    assert metrics(list(workers(task=task).run(stretch(trial=1)))) == plain
    assert drawn_in(tmp_path / "trial-1")


def test_a_task_that_draws_nothing_is_not_brought_into_that_state_again(monkeypatch):
    applied = []
    original = Ema.applied
    monkeypatch.setattr(Ema, "applied", lambda ema: (applied.append(ema), original(ema))[1])
    assert len(list(train(Regression(RegressionConfig(ema_decay=0.9)), 2))) == 2
    assert len(applied) == 2, "an evaluation each"


def test_ranks_other_than_the_first_draw_nothing():
    training = TrialTrainer(Drawing(RegressionConfig()))
    training.run_epoch()
    assert evaluation.render_images(training.task, training._buffers)
    training.task.context = Context(rank=1, world_size=2)
    assert evaluation.render_images(training.task, training._buffers) == {}


# What is no picture


GOOD = np.zeros((2, 2, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("drawn", "told"),
    [
        ([GOOD], "pictures must return arrays by name, but got list. Return a dict."),
        (
            {"a/b": GOOD},
            "pictures must have names of letters, digits, - and _ (at most 100), but got 'a/b'. Rename it.",
        ),
        ({"": GOOD}, "pictures must have names of letters, digits, - and _ (at most 100), but got ''. Rename it."),
        (
            {"ok": GOOD, "grey": GOOD[..., 0], "lists": [[[0, 0, 0]]]},
            "picture 'grey' must be a numpy array of uint8 of shape (height, width, 3), but got uint8 of shape (2, 2). "
            "picture 'lists' must be a numpy array of uint8 of shape (height, width, 3), but got list.",
        ),
        (
            {"float": GOOD / 255},
            "picture 'float' must be a numpy array of uint8 of shape (height, width, 3), "
            "but got float64 of shape (2, 2, 3).",
        ),
        (
            {"empty": GOOD[:0]},
            "picture 'empty' must be a numpy array of uint8 of shape (height, width, 3), "
            "but got uint8 of shape (0, 2, 3).",
        ),
    ],
)
def test_what_is_no_picture_fails_the_trial_with_a_line_that_says_so(stretch, monkeypatch, tmp_path, drawn, told):
    monkeypatch.setattr(Drawing, "drawn", drawn)
    (report,) = workers(task=TASK).run(stretch(until=1))
    assert (report.outcome, report.reason) == ("failed", f"ValueError: {told}")
    assert drawn_in(tmp_path / "trial-0") == {}


def test_pictures_are_replaced_all_at_once_or_not_at_all(tmp_path):
    path = tmp_path / "epoch-1-a.pt"
    images.save({"one": GOOD, "two": GOOD}, path)
    with pytest.raises(TypeError):
        images.save({"one": GOOD, "three": GOOD.astype(np.complex64)}, path)
    assert drawn_in(tmp_path) == {"epoch-1-a.pt": ["one.png", "two.png"]}
    images.save({"three": GOOD}, path)
    assert drawn_in(tmp_path) == {"epoch-1-a.pt": ["three.png"]}
    assert len(list(tmp_path.iterdir())) == 1


def test_in_a_bucket_pictures_without_their_checkpoint_are_none_that_count(s3):
    folder = parse_path(s3) / "trial-0"
    for epoch in (9, 10, 11):  # of one second, perhaps
        images.save({"one": GOOD}, folder / f"epoch-{epoch}-a.pt")
        if epoch < 11:
            checkpoint.save({}, folder / f"epoch-{epoch}-a.pt")
    assert images.find_best_images(folder) == folder / "epoch-10-a.pt.pictures"
    images.save({"two": GOOD}, folder / "epoch-10-a.pt")
    assert (folder / "epoch-10-a.pt.pictures").list_files() == ["two.png"]
