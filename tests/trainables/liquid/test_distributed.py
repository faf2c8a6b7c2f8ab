"""Two ranks learn a stream as one does: the same updates, the same memory, the same plastic weights."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainables.liquid.small_liquid import config_of
from tests.trainables.toy_models import identical, timeless
from tests.trainables.two_ranks import RANKS
from trainables.context import Context
from trainables.liquid import LiquidTask
from trainables.training.trainer import TrialTrainer

HELD = {"consolidation": {"method": "ewc", "ewc_strength": 100.0}, "plasticity": {"rule": "homeostatic", "meta": True}}
STREAM: dict[str, Any] = {"data": "series", "continual": {"tasks": 2}, "epochs": 2, "lr": 1e-3, **HELD}


def trained(rank: int, ranks: int, config: dict[str, Any], folder: str = "") -> dict[str, Any]:
    """The reports of a trial, and what it is in the end."""
    training = TrialTrainer(LiquidTask(config_of(**config), Context(rank=rank, world_size=ranks)))
    if folder:
        training.load(Path(folder) / "rank-0.pt")
    reports = [timeless(training.run_epoch() or {}) for _ in range(training.epoch, training.task.config.epochs)]
    task = training.task
    return {
        "reports": reports,
        "network": {name: value.clone() for name, value in task.network.state_dict().items()},
        "task": task.state_dict(),
    }


def on_two(rank: int, config: dict[str, Any], folder: str = "") -> dict[str, Any]:
    return trained(rank, RANKS, config, folder)


def stopped(rank: int, config: dict[str, Any], folder: str) -> None:
    """Stop in the first epoch of the second task, after two windows."""
    training = TrialTrainer(LiquidTask(config_of(**config), Context(rank=rank, world_size=RANKS)))
    training.run_epoch()
    asked = itertools.count()  # before any window, then at the beginning of each, which is finished
    assert training.run_epoch(lambda: next(asked) == 2) is None
    assert training.windows == 2
    training.save(Path(folder) / f"rank-{rank}.pt")


def alone(config: dict[str, Any]) -> dict[str, Any]:
    return trained(0, 1, config)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_two_ranks_with_half_the_batch_are_one_rank(pair: Any, accumulation: int) -> None:
    config = {**STREAM, "replay": {"fraction": 0.0}, "accumulation": accumulation}
    first, second = pair.run(on_two, {**config, "batch_size": 4})
    one = alone({**config, "batch_size": 8})
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


@pytest.mark.parametrize("method", ["ewc", "si"])
@pytest.mark.parametrize("samples", [32, 9])
def test_ranks_that_replay_have_the_same_weights_and_the_same_memory(pair: Any, method: str, samples: int) -> None:
    """Also where one of them has fewer samples than the other, of the epoch and of the Fisher."""
    kept = {"consolidation": {"method": method, "fisher_samples": 5}, "replay": {"logits_weight": 0.5}}
    first, second = pair.run(on_two, {**STREAM, **kept, "samples": samples, "batch_size": 3})
    assert identical(first["network"], second["network"])
    assert identical(first["task"], second["task"])
    assert identical(first["reports"], second["reports"])
    assert first["task"]["past"]["reservoir"]["offered"] == {0: samples}


def test_two_ranks_go_on_from_the_file_of_the_first(pair: Any, tmp_path: Path) -> None:
    config = {**STREAM, "replay": {"logits_weight": 0.5}, "consolidation": {"method": "ewc", "fisher_samples": 5}}
    through = pair.run(on_two, config)
    pair.run(stopped, config, str(tmp_path))
    resumed = pair.run(on_two, config, str(tmp_path))
    for rank in range(RANKS):
        assert identical(resumed[rank]["reports"], through[rank]["reports"][1:])
        assert identical(resumed[rank]["network"], through[rank]["network"])
        assert identical(resumed[rank]["task"], through[rank]["task"])
