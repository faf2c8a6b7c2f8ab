"""Show that two ranks learn a stream as one does: the same updates, memory and plastic weights."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from searchlight.trainables.context import Context
from searchlight.trainables.liquid import LiquidTask
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.liquid.small_liquid import config_of
from tests.trainables.toy_models import identical, timeless
from tests.trainables.two_ranks import RANKS

HELD = {"consolidation": {"method": "ewc", "ewc_strength": 100.0}, "plasticity": {"rule": "homeostatic", "meta": True}}
STREAM: dict[str, Any] = {"data": "series", "continual": {"tasks": 2}, "epochs": 2, "lr": 1e-3, **HELD}


def trainer(rank: int, ranks: int, config: dict[str, Any]) -> TrialTrainer:
    return TrialTrainer(LiquidTask(config_of(**config), Context(rank=rank, world_size=ranks)))


def train(rank: int, config: dict[str, Any], folder: str = "", ranks: int = RANKS) -> dict[str, Any]:
    """Return the reports of a trial, and what it is in the end."""
    training = trainer(rank, ranks, config)
    if folder:
        training.load(Path(folder) / "rank-0.pt")
    task = training.task
    reports = [timeless(training.run_epoch() or {}) for _ in range(training.epoch, task.config.epochs)]
    network = {name: value.clone() for name, value in task.network.state_dict().items()}
    return {"reports": reports, "network": network, "task": task.state_dict()}


def stop(rank: int, config: dict[str, Any], folder: str) -> None:
    """Stop in the first epoch of the second task, after two windows."""
    training = trainer(rank, RANKS, config)
    training.run_epoch()
    asked = itertools.count()  # before any window, then at the beginning of each, which is finished
    assert training.run_epoch(lambda: next(asked) == 2) is None
    assert training.windows == 2
    training.save(Path(folder) / f"rank-{rank}.pt")


def test_two_ranks_with_half_the_batch_equal_one_rank(pair):
    config = {**STREAM, "replay": {"fraction": 0.0}, "accumulation": 2}
    first, second = pair.run(train, {**config, "batch_size": 4})
    one = train(0, {**config, "batch_size": 8}, ranks=1)
    assert identical(first["network"], second["network"])
    for name, value in one["network"].items():
        assert torch.allclose(value, first["network"][name], atol=1e-4), name
    fishers = [found["task"]["past"]["hold"]["fisher"] for found in (one, first)]
    for name, value in fishers[0].items():
        assert torch.allclose(value, fishers[1][name], rtol=1e-2, atol=1e-4), name
    for report, expected in zip(first["reports"], one["reports"], strict=True):
        assert report["val/score"] == pytest.approx(expected["val/score"], abs=1e-4)
        assert report["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-4)
        assert report["train/updates"] == expected["train/updates"]


@pytest.mark.parametrize(("method", "samples"), [("ewc", 9), ("si", 9), ("ewc", 32)])
def test_ranks_that_replay_share_weights_and_memory(pair, method, samples):
    """Also where one of them has fewer samples than the other, of the epoch and of the Fisher."""
    kept = {"consolidation": {"method": method, "fisher_samples": 5}, "replay": {"logits_weight": 0.5}}
    first, second = pair.run(train, {**STREAM, **kept, "samples": samples, "batch_size": 3})
    assert identical(first, second)
    assert first["task"]["past"]["reservoir"]["offered"] == {0: samples}


def test_two_ranks_resume_from_the_file_of_the_first(pair, tmp_path):
    config = {**STREAM, "replay": {"logits_weight": 0.5}, "consolidation": {"method": "ewc", "fisher_samples": 5}}
    through = pair.run(train, config)
    pair.run(stop, config, str(tmp_path))
    for straight, resumed in zip(through, pair.run(train, config, str(tmp_path)), strict=True):
        assert identical(resumed, {**straight, "reports": straight["reports"][1:]})
