"""Two ranks go on from one file as if they had not been interrupted, or as one rank, or one as two."""

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainables.toy_models import (
    FULL,
    Augmented,
    Regression,
    RegressionConfig,
    every_precision,
    identical,
    recorded_gradients,
    scramble,
    state,
    timeless,
)
from tests.trainables.two_ranks import RANKS
from trainables import checkpoint
from trainables.checkpoint import CheckpointError
from trainables.context import Context
from trainables.training.trainer import TrialTrainer

SETTINGS = {**FULL, "size": 45}  # six micro-batches on each rank, three windows
SMOOTH = {"size": 22, "max_grad_norm": None}


class Smooth(Regression):
    """Trains the same on one rank in batches of 8 as on two in batches of 4: nothing in it mixes samples."""

    def build(self) -> None:
        super().build()
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.modules = {"model": model}
        self.optimizers = {"sgd": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}
        self.schedulers = []
        self.gradients = recorded_gradients(self.optimizers["sgd"])

    def evaluate(self) -> dict[str, Any]:
        return {**super().evaluate(), "val/draw": 0.0}


# What runs on each rank


def straight(rank: int, settings: dict[str, Any], epochs: int) -> dict[str, Any]:
    training = TrialTrainer(Augmented(RegressionConfig(**settings), Context(rank=rank, world_size=RANKS)))
    return {"reports": [timeless(training.run_epoch()) for _ in range(epochs)], "state": copy.deepcopy(state(training))}


def saved_after_an_epoch(rank: int, settings: dict[str, Any], folder: str) -> None:
    training = TrialTrainer(Augmented(RegressionConfig(**settings), Context(rank=rank, world_size=RANKS)))
    training.run_epoch()
    training.save(Path(folder) / f"rank-{rank}.pt")


def interrupted(rank: int, settings: dict[str, Any], epoch: int, window: int, folder: str) -> dict[str, Any]:
    """Save after so many windows, and go on in memory for a window: what is saved later does not matter."""
    training = TrialTrainer(Augmented(RegressionConfig(**settings), Context(rank=rank, world_size=RANKS)))
    for _ in range(epoch):
        training.run_epoch()
    asked = itertools.count()  # first before any window, then at the beginning of each, which is finished
    stopped = training.run_epoch(lambda: next(asked) == window)
    before = copy.deepcopy(state(training))
    training.save(Path(folder) / f"rank-{rank}.pt")
    unchanged = identical(before, state(training))
    training.run_epoch()
    return {"report": stopped, "windows": before["windows"], "state": before, "unchanged": unchanged}


def resumed(rank: int, settings: dict[str, Any], file: str, epochs: int) -> dict[str, Any]:
    scramble()
    training = TrialTrainer(Augmented(RegressionConfig(**settings), Context(rank=rank, world_size=RANKS)))
    training.load(Path(file))
    loaded = copy.deepcopy(state(training))
    reports = [timeless(training.run_epoch()) for _ in range(epochs)]
    return {"loaded": loaded, "reports": reports, "state": copy.deepcopy(state(training))}


def saving_itself(rank: int, settings: dict[str, Any], folder: str) -> None:
    training = TrialTrainer(Augmented(RegressionConfig(**settings), Context(rank=rank, world_size=RANKS)))
    training.autosave = (Path(folder) / f"auto-{rank}.pt", 0.0 if rank else 3600.0)  # due on one rank is due on all
    training.run_epoch(lambda: training.windows >= 1)
    training.save(Path(folder) / f"asked-{rank}.pt")


def refused(rank: int, settings: dict[str, Any], file: str) -> str:
    training = TrialTrainer(Augmented(RegressionConfig(**settings), Context(rank=rank, world_size=RANKS)))
    try:
        training.load(Path(file))
    except CheckpointError as error:
        return str(error)
    return "taken up"


def smooth_epochs(rank: int, world_size: int, load: str | None, save: str | None, epochs: int) -> dict[str, Any]:
    config = RegressionConfig(**SMOOTH, batch_size=8 // world_size)
    training = TrialTrainer(Smooth(config, Context(rank=rank, world_size=world_size)))
    if load is not None:
        training.load(Path(load))
    reports = [timeless(training.run_epoch()) for _ in range(epochs)]
    if save is not None:
        training.save(Path(save))
    return {"reports": reports, "gradients": training.task.gradients}


# The same number of ranks


@every_precision
@pytest.mark.parametrize("window", [0, 1, 2, 3])
def test_two_ranks_go_on_bit_for_bit_from_the_middle_of_an_epoch(pair, tmp_path, precision, window):  # H76, H79, C61
    settings = {**SETTINGS, "precision": precision}
    expected = pair.run(straight, settings, 3)
    held = pair.run(interrupted, settings, 1, window, str(tmp_path))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rank-0.pt", "rank-0.pt.sha256"]
    results = pair.run(resumed, settings, str(tmp_path / "rank-0.pt"), 2)
    for rank in range(RANKS):
        assert (held[rank]["report"], held[rank]["windows"], held[rank]["unchanged"]) == (None, window, True)
        assert identical(results[rank]["loaded"], held[rank]["state"])
        assert identical(results[rank]["reports"], expected[rank]["reports"][1:])
        assert identical(results[rank]["state"], expected[rank]["state"])


def test_each_rank_has_its_own_generators_and_buffers_in_the_file(pair, tmp_path):  # H79
    pair.run(interrupted, SETTINGS, 0, 2, str(tmp_path))
    first, second = checkpoint.load(tmp_path / "rank-0.pt")["midway"]["ranks"]
    own = [name for name in first["rng"] if not identical(first["rng"][name], second["rng"][name])]
    assert own == ["python", "numpy", "torch"]
    assert not identical(first["buffers"], second["buffers"])
    assert not identical(first["noted"], second["noted"])


@every_precision
def test_two_ranks_go_on_bit_for_bit_from_the_end_of_an_epoch(pair, tmp_path, precision):  # H76, C61
    settings = {**SETTINGS, "precision": precision}
    expected = pair.run(straight, settings, 2)
    pair.run(saved_after_an_epoch, settings, str(tmp_path))
    results = pair.run(resumed, settings, str(tmp_path / "rank-0.pt"), 1)
    for rank in range(RANKS):
        assert identical(results[rank]["reports"], expected[rank]["reports"][1:])
        assert identical(results[rank]["state"], expected[rank]["state"])


def test_an_epoch_on_two_ranks_saves_itself_when_one_of_them_finds_it_due(pair, tmp_path):  # H85
    pair.run(saving_itself, SETTINGS, str(tmp_path))
    names = {file.name for file in tmp_path.glob("*.pt")}
    assert names == {"auto-0.pt", "asked-0.pt"}
    saved, asked = (checkpoint.load(tmp_path / f"{name}-0.pt") for name in ("auto", "asked"))
    for content in (saved, asked):
        content["midway"].pop("seconds")
    assert identical(saved, asked)


# Another number of ranks


def test_one_rank_does_not_take_up_the_middle_of_an_epoch_of_two(pair, tmp_path):  # H79, H80
    pair.run(interrupted, SETTINGS, 1, 1, str(tmp_path))
    training = TrialTrainer(Augmented(RegressionConfig(**SETTINGS)))
    before = copy.deepcopy(state(training))
    with pytest.raises(
        CheckpointError,
        match=r"middle of epoch 2 must be taken up by as many ranks as saved it, 2, but got 1\. Use one from the end",
    ):
        training.load(tmp_path / "rank-0.pt")
    assert identical(state(training), before)


def test_two_ranks_do_not_take_up_the_middle_of_an_epoch_of_one(pair, tmp_path):  # H79, H80
    training = TrialTrainer(Augmented(RegressionConfig(**SETTINGS)))
    training.run_epoch(lambda: training.windows == 1)
    training.save(tmp_path / "one.pt")
    for message in pair.run(refused, SETTINGS, str(tmp_path / "one.pt")):
        assert "as many ranks as saved it, 1, but got 2." in message


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1)], ids=["one-to-two", "two-to-one"])
def test_another_number_of_ranks_goes_on_from_the_end_of_an_epoch(pair, tmp_path, ranks):  # H80, C60
    path = str(tmp_path / "end.pt")

    def run(world_size: int, load: str | None, save: str | None, epochs: int) -> dict[str, Any]:
        if world_size == 1:
            return smooth_epochs(0, 1, load, save, epochs)
        return pair.run(smooth_epochs, 2, load, save, epochs)[0]

    expected = smooth_epochs(0, 1, None, None, 3)
    first = run(ranks[0], None, path, 1)
    second = run(ranks[1], path, None, 2)
    reports = first["reports"] + second["reports"]
    assert [report["val/seen"] for report in reports] == [22.0, 44.0, 66.0]
    assert [report["train/updates"] for report in reports] == [3, 6, 9]
    for report, other in zip(reports, expected["reports"], strict=True):
        assert report["val/loss"] == pytest.approx(other["val/loss"], rel=1e-5)
        assert report["train/loss"] == pytest.approx(other["train/loss"], rel=1e-5)
    gradients = first["gradients"] + second["gradients"]
    for got, wanted in zip(gradients, expected["gradients"], strict=True):
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(got, wanted, strict=True))
