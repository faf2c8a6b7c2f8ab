"""Resume on two ranks from one file, exactly, or with another number of ranks."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from searchlight.trainables import checkpoint
from tests.trainables.toy_models import FULL, Augmented, Sharded, identical, recorded_gradients, scramble, state
from tests.trainables.training.trials import load_trial, make_trial, run_epochs
from tests.trainables.two_ranks import RANKS

SETTINGS = {**FULL, "size": 45}  # six micro-batches on each rank, three windows


def run_straight(rank: int, settings: dict[str, Any], epochs: int) -> tuple[Any, Any]:
    training = make_trial(Augmented, rank, RANKS, **settings)
    return run_epochs(training, epochs), state(training)


def stop_and_save(rank: int, settings: dict[str, Any], window: int | None, folder: str) -> dict[str, Any]:
    """Save in the second epoch, or before it, and continue in memory: what is saved later does not matter."""
    training = make_trial(Augmented, rank, RANKS, **settings)
    training.run_epoch()
    if window is not None:
        asked = itertools.count()  # first before any window, then at the beginning of each, which is finished
        assert training.run_epoch(lambda: next(asked) == window) is None
    before = state(training)
    training.save(Path(folder) / f"rank-{rank}.pt")
    unchanged = identical(before, state(training))
    training.run_epoch()
    return {"unchanged": unchanged, "state": before}


def resume(rank: int, settings: dict[str, Any], file: str, epochs: int) -> tuple[Any, Any, Any]:
    scramble()
    training = load_trial(Path(file), Augmented, rank=rank, world_size=RANKS, **settings)
    loaded = state(training)
    return loaded, run_epochs(training, epochs), state(training)


@pytest.mark.parametrize(
    ("precision", "window"), [("fp32", None), ("fp16", None), ("fp32", 0), ("bf16", 1), ("fp16", 2), ("fp32", 3)]
)
def test_two_ranks_resume_exactly(pair, tmp_path, precision, window):  # H76, H79
    settings = {**SETTINGS, "precision": precision}
    expected = pair.run(run_straight, settings, 3)
    held = pair.run(stop_and_save, settings, window, str(tmp_path))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rank-0.pt", "rank-0.pt.sha256"]
    results = pair.run(resume, settings, str(tmp_path / "rank-0.pt"), 2)
    for rank, (loaded, reports, at_the_end) in enumerate(results):
        if window is not None:  # the end of an epoch has the buffers of rank 0
            assert held[rank]["unchanged"]
            assert held[rank]["state"]["windows"] == window
            assert identical(loaded, held[rank]["state"])
        assert identical(reports, expected[rank][0][1:])
        assert identical(at_the_end, expected[rank][1])


def autosave(rank: int, folder: str) -> None:
    training = make_trial(Augmented, rank, RANKS, **SETTINGS)
    training.autosave = (Path(folder) / f"auto-{rank}.pt", 0.0 if rank else 3600.0)  # due on one rank is due on all
    training.run_epoch(lambda: training.windows >= 1)
    training.save(Path(folder) / f"asked-{rank}.pt")


def test_autosave_due_on_one_rank_saves_both(pair, tmp_path):  # H85
    pair.run(autosave, str(tmp_path))
    assert {file.name for file in tmp_path.glob("*.pt")} == {"auto-0.pt", "asked-0.pt"}
    saved, asked = (checkpoint.load(tmp_path / f"{name}-0.pt") for name in ("auto", "asked"))
    for content in (saved, asked):
        content["midway"].pop("seconds")
    assert identical(saved, asked)


class Smooth(Sharded):
    """Trains the same on one rank in batches of 8 as on two in batches of 4: nothing in it mixes samples."""

    def build(self) -> None:
        super().build()
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.modules = {"model": model}
        self.optimizers = {"sgd": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}
        self.schedulers = []
        self.gradients = recorded_gradients(self.optimizers["sgd"])


def run_smooth(rank: int, world_size: int, load: str | None, save: str | None, epochs: int) -> tuple[Any, Any]:
    training = make_trial(Smooth, rank, world_size, size=22, max_grad_norm=None, batch_size=8 // world_size)
    if load is not None:
        training.load(Path(load))
    reports = run_epochs(training, epochs)
    if save is not None:
        training.save(Path(save))
    return reports, training.task.gradients


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1)], ids=["one-to-two", "two-to-one"])
def test_other_number_of_ranks_resumes_after_an_epoch(pair, tmp_path, ranks):
    path = str(tmp_path / "end.pt")

    def run(world_size: int, *arguments: Any) -> tuple[Any, Any]:
        if world_size == 1:
            return run_smooth(0, 1, *arguments)
        return pair.run(run_smooth, 2, *arguments)[0]

    expected, wanted_gradients = run_smooth(0, 1, None, None, 3)
    first, first_gradients = run(ranks[0], None, path, 1)
    second, second_gradients = run(ranks[1], path, None, 2)
    reports = first + second
    assert [report["val/seen"] for report in reports] == [22.0, 44.0, 66.0]
    assert [report["train/updates"] for report in reports] == [3, 6, 9]
    for report, other in zip(reports, expected, strict=True):
        assert report["val/loss"] == pytest.approx(other["val/loss"], rel=1e-5)
        assert report["train/loss"] == pytest.approx(other["train/loss"], rel=1e-5)
    for got, wanted in zip(first_gradients + second_gradients, wanted_gradients, strict=True):
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(got, wanted, strict=True))
