"""Show which reports are drawn, in which state, where pictures lie, and what is no picture."""

import io
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import images
from searchlight.trainables.context import Context
from searchlight.trainables.filesystem.paths import StoragePath, list_files, parse_path, remove_tree
from searchlight.trainables.training import evaluation
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.toy_models import Regression, RegressionConfig, identical
from tests.trainables.worker.local_worker import metrics, stretch_in, workers

LOSSES = (0.5, 0.7, 0.4, 0.4)  # of the epochs: the first and the third are better than all before them
TASK = f"{__name__}:Drawing"
GOOD = np.zeros((2, 2, 3), dtype=np.uint8)


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


def drawn_in(folder: StoragePath) -> dict[str, list[str]]:
    """Return the names of the pictures beside each checkpoint, by its name."""
    return {
        path.name.removesuffix(".pictures"): sorted(file.name for file in path.iterdir())
        for path in folder.glob("*.pictures")
    }


@pytest.mark.parametrize(("mode", "expected"), [("min", [1, 3]), ("max", [1, 2])])
def test_only_reports_better_than_all_before_are_drawn(monkeypatch, mode, expected):
    monkeypatch.setattr(Drawing, "mode", mode)
    training = TrialTrainer(Drawing(RegressionConfig(epochs=4)))
    found = []
    for epoch in range(1, 5):
        training.run_epoch()
        found += [epoch] if training.pictures else []
    assert found == expected


def test_pictures_lie_beside_the_checkpoint_of_their_report(anywhere):
    folder = anywhere / "trial-0"
    reports = list(workers(task=TASK).run(stretch_in(anywhere, until=4)))
    assert [report.epoch for report in reports] == [1, 2, 3, 4]
    assert drawn_in(folder) == {"epoch-1-a.pt": ["epoch.png"], "epoch-3-a.pt": ["epoch.png"]}
    for epoch in (1, 3):
        content = (folder / f"epoch-{epoch}-a.pt.pictures" / "epoch.png").read_bytes()
        assert np.array_equal(Image.open(io.BytesIO(content)), np.full((2, 5, 3), epoch))
    assert images.find_best_images(folder) == folder / "epoch-3-a.pt.pictures"
    for report in reports:
        checkpoint.delete(parse_path(report.checkpoint))
    assert list(folder.iterdir()) == []
    assert images.find_best_images(folder) is None


def test_resumed_trial_compares_with_its_best_before(stretch, tmp_path):
    (*_, last) = workers(task=TASK).run(stretch(until=2))
    list(workers(task=TASK).run(stretch(epoch=2, until=4, start=last.checkpoint)))
    assert set(drawn_in(tmp_path / "trial-0")) == {"epoch-1-a.pt", "epoch-3-a.pt"}


def test_copied_trial_has_a_best_of_its_own(stretch, tmp_path):
    (first, *_) = workers(task=TASK).run(stretch(until=2))
    start = first.checkpoint
    list(workers(task=TASK).run(replace(stretch(trial=1, epoch=1, until=2, start=start), copied=start)))
    assert set(drawn_in(tmp_path / "trial-1")) == {"epoch-2-a.pt"}, "worse than the other's first, but its own first"


class Looking(Regression):
    """Notes in which state its model is."""

    def look(self) -> dict[str, Any]:
        model = self.modules["model"]
        model(self.inputs)  # in training mode it would change the statistics of batch norm
        switches = {torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), *(p.training for p in model.modules())}
        return {"switches": switches, **{name: value.clone() for name, value in model.state_dict().items()}}

    def evaluate(self) -> dict[str, Any]:
        self.evaluated = self.look()
        return super().evaluate()

    def pictures(self) -> Any:
        self.drawn = self.look()
        return {"one": GOOD}


def test_pictures_are_drawn_in_the_state_of_the_evaluation():
    task = Looking(RegressionConfig(ema_decay=0.9, precision="bf16"))
    TrialTrainer(task).run_epoch()
    assert identical(task.drawn, task.evaluated)
    assert task.drawn["switches"] == {False}
    assert not torch.equal(task.drawn["0.weight"], task.modules["model"][0].weight), "the averages"
    assert task.modules["model"].training


def test_drawing_changes_no_report(stretch, tmp_path, monkeypatch):
    plain = metrics(list(workers().run(stretch(trial=0))))
    monkeypatch.setattr(Regression, "pictures", lambda task: {"noise": (255 * torch.rand(3, 3, 3)).byte().numpy()})
    assert metrics(list(workers().run(stretch(trial=1)))) == plain
    assert drawn_in(tmp_path / "trial-1")


def test_only_rank_0_draws():
    training = TrialTrainer(Drawing(RegressionConfig()))
    training.run_epoch()
    assert evaluation.render_images(training.task, training._buffers)
    training.task.context = Context(rank=1, world_size=2)
    assert evaluation.render_images(training.task, training._buffers) == {}


NAMES = "pictures must have names of letters, digits, - and _ (at most 100), but got {}. Rename it."
ARRAYS = "picture {} must be a numpy array of uint8 of shape (height, width, 3), but got {}."


@pytest.mark.parametrize(
    ("drawn", "told"),
    [
        ([GOOD], "pictures must return arrays by name, but got list. Return a dict."),
        ({"a/b": GOOD, "": GOOD}, f"{NAMES.format(repr('a/b'))} {NAMES.format(repr(''))}"),
        (
            {"ok": GOOD, "gray": GOOD[..., 0], "lists": [[[0, 0, 0]]]},
            f"{ARRAYS.format(repr('gray'), 'uint8 of shape (2, 2)')} {ARRAYS.format(repr('lists'), 'list')}",
        ),
        ({"float": GOOD / 255}, ARRAYS.format(repr("float"), "float64 of shape (2, 2, 3)")),
        ({"empty": GOOD[:0]}, ARRAYS.format(repr("empty"), "uint8 of shape (0, 2, 3)")),
        ({"gray": GOOD[..., :1]}, ARRAYS.format(repr("gray"), "uint8 of shape (2, 2, 1)")),
    ],
)
def test_wrong_pictures_fail_the_trial_with_one_line(stretch, monkeypatch, tmp_path, drawn, told):
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


def test_pictures_count_with_their_checkpoint_or_alone(anywhere):
    folder = anywhere / "trial-0"
    for epoch in (9, 10, 11):  # of one second, perhaps
        images.save({"one": GOOD}, folder / f"epoch-{epoch}-a.pt")
        if epoch < 11:
            checkpoint.save({}, folder / f"epoch-{epoch}-a.pt")
    assert images.find_best_images(folder) == folder / "epoch-10-a.pt.pictures"
    images.save({"two": GOOD}, folder / "epoch-10-a.pt")
    assert list_files(folder / "epoch-10-a.pt.pictures") == ["two.png"]
    for epoch in (9, 11):
        remove_tree(folder / f"epoch-{epoch}-a.pt.pictures")
    for name in ("epoch-10-a.pt", "epoch-10-a.pt.sha256"):  # the trial has ended, and is not among the best
        (folder / name).unlink()
    assert images.find_best_images(folder) == folder / "epoch-10-a.pt.pictures"
