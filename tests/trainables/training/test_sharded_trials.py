"""Train tasks whose modules are sharded over two ranks; save, resume and copy them on other numbers of ranks."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint.selection import find_resume_checkpoint
from searchlight.trainables.filesystem.paths import parse_path
from searchlight.trainables.training.predictor import Predictor
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.toy_models import Regression, distance, identical, norm, scramble
from tests.trainables.training.sharded_tasks import SETTINGS, Split, Steady, make_split, state, stop_and_save
from tests.trainables.training.trials import run_epochs
from tests.trainables.two_ranks import RANKS


def run_straight(rank: int, settings: dict[str, Any], epochs: int) -> tuple[Any, Any]:
    training = make_split(rank, settings)
    return run_epochs(training, epochs), state(training)


def resume(rank: int, settings: dict[str, Any], path: str, epochs: int) -> tuple[Any, Any, Any]:
    scramble()
    training = make_split(rank, settings)
    training.load(Path(path))
    return state(training), run_epochs(training, epochs), state(training)


@pytest.mark.parametrize(("precision", "window"), [("fp32", None), ("fp16", 2), ("bf16", 1)])
def test_sharded_trial_resumes_exactly_on_as_many_ranks(pair, tmp_path, precision, window):  # H76, H79
    settings = {**SETTINGS, "precision": precision}
    expected = pair.run(run_straight, settings, 3)
    saved = pair.run(stop_and_save, settings, window, str(tmp_path / "epoch.pt"))
    assert [pictures for _, pictures in saved] == [["black"], []]
    assert [file.name for file in tmp_path.iterdir()] == ["epoch.pt"]
    results = pair.run(resume, settings, str(tmp_path / "epoch.pt"), 2)
    for rank, (loaded, reports, at_the_end) in enumerate(results):
        if window is not None:
            assert identical(loaded, saved[rank][0])
        assert identical(reports, expected[rank][0][1:])
        assert identical(at_the_end, expected[rank][1])
    shards = [result[2]["modules"]["model"]["0.weight"] for result in results]
    assert [shard.shape for shard in shards] == [(4, 3), (4, 3)]


def whole_weights(training: TrialTrainer) -> list[torch.Tensor]:
    parameters = training.task.modules["model"].parameters()
    return [p.full_tensor().detach() if isinstance(p, DTensor) else p.detach().clone() for p in parameters]


def train_steady(rank: int, ranks: int, source: str | None, target: str | None, **settings: Any) -> Any:
    """Another epoch, from a checkpoint and to another one."""
    batch_size = 8 // ranks
    training = make_split(rank, {"size": 24, "batch_size": batch_size, "epochs": 4, **settings}, Steady, ranks)
    if source:
        training.load(Path(source))
    training.run_epoch()
    if target:
        training.save(Path(target))
    weights = whole_weights(training)
    training.close()
    return weights


def run_steady(rank: int, *arguments: Any) -> Any:
    return train_steady(rank, RANKS, *arguments)


def report_steady(rank: int, shard: bool) -> Any:
    """A rank has six micro-batches of an epoch, and the other one five."""
    settings = {"size": 41, "accumulation": 4, "ema_decay": 0.5, "epochs": 2, "shard": shard}
    return run_epochs(make_split(rank, settings, Steady), 2)


def test_sharded_trial_reports_what_replicas_report(pair):
    replicas, shards = (pair.run(report_steady, shard) for shard in (False, True))
    for theirs, mine in zip(replicas, shards, strict=True):
        assert mine[0].keys() == theirs[0].keys() >= {"train/loss", "train/input", "train/micro_batches"}
        assert mine == [pytest.approx(report, rel=1e-4) for report in theirs]


class Apart(Steady):
    """Evaluates with weights that are gathered in each forward pass."""

    unshard_to_evaluate = False
    pictures = Regression.pictures

    def evaluate(self) -> dict[str, Any]:
        return {"val/loss": self.part((self.inputs, self.targets))[0]}


class Drawn(Apart):
    """Draws without whole weights."""

    def pictures(self) -> dict[str, Any]:
        return {}


def evaluate_apart(rank: int, task: type[Split]) -> Any:
    try:
        return [report["val/loss"] for report in run_epochs(make_split(rank, {"size": 24, "ema_decay": 0.5}, task), 2)]
    except ValueError as error:
        return str(error)


def test_evaluation_can_gather_weights_in_each_pass(pair):
    first, second = pair.run(evaluate_apart, Apart)
    assert first == second
    assert first[1] < first[0]
    for message in pair.run(evaluate_apart, Drawn):
        assert message.startswith("Drawn.pictures must have whole weights on rank 0")


@pytest.mark.usefixtures("alone")
def test_sharded_checkpoint_goes_on_with_other_numbers_of_ranks(pair, tmp_path):  # H80
    first, second, third = (str(tmp_path / f"{name}.pt") for name in "abc")
    pair.run(run_steady, None, first)
    once = train_steady(0, 1, first, second)
    again = pair.run(run_steady, second, third)
    assert identical(again[0], again[1])
    pair.run(run_steady, first, str(tmp_path / "d.pt"))
    expected = pair.run(run_steady, str(tmp_path / "d.pt"), None)[0]
    assert distance(again[0], expected) <= 1e-5 * norm(expected)
    assert distance(once, expected) > 1e-4 * norm(expected), "an epoch must change the weights"
    replicas = train_steady(0, 1, third, str(tmp_path / "e.pt"), shard=False)
    assert distance(replicas, train_steady(0, 1, third, None)) <= 1e-5 * norm(replicas)
    assert (tmp_path / "e.pt").is_file()
    pair.run(run_steady, str(tmp_path / "e.pt"), None)  # and one of replicas is sharded


def go_on_in_bucket(rank: int, settings: dict[str, Any], folder: str, env: dict[str, str], saves: bool) -> Any:
    """Save in the first epoch, after an earlier checkpoint of that name; or go on from there to the second one."""
    os.environ.update(env)
    path = parse_path(folder) / "midway-a.pt"
    training = make_split(rank, settings)
    if saves:
        training.save(path)
        assert training.run_epoch(lambda: training.windows >= 1) is None
        training.save(path)
        return None
    found = find_resume_checkpoint(parse_path(folder), 0, (None,), RANKS)
    assert found is not None
    training.restore(found[1])
    reports = run_epochs(training, 2)
    if rank == 0:
        training.discard(path)
    training.close()
    return reports, state(training)


def test_sharded_trial_resumes_exactly_from_a_bucket(pair, s3, s3_server):
    expected = pair.run(run_straight, SETTINGS, 2)
    pair.run(go_on_in_bucket, SETTINGS, s3, s3_server.env, True)
    assert identical(pair.run(go_on_in_bucket, SETTINGS, s3, s3_server.env, False), expected)
    assert list(parse_path(s3).list_files()) == []


@pytest.mark.usefixtures("alone")
def test_sharded_save_waits_until_the_old_file_is_deleted(s3, monkeypatch):
    """The deletion does not begin before somebody waits for it."""
    path, training, begun = parse_path(s3) / "midway-a.pt", make_split(0, SETTINGS, ranks=1), threading.Event()
    delete, wait = checkpoint.delete, checkpoint.Writer.wait
    assert training.run_epoch(lambda: training.windows >= 1) is None
    training.save(path)
    monkeypatch.setattr("searchlight.trainables.checkpoint.writer.delete", lambda path: (begun.wait(), delete(path)))
    training.discard(path)
    monkeypatch.setattr(checkpoint.Writer, "wait", lambda writer: (begun.set(), wait(writer)))
    training.save(path)
    training.close()
    assert find_resume_checkpoint(parse_path(s3), 0, (None,), 1) is not None


def predict_in_trial(rank: int, path: str) -> Any:
    training = make_split(rank, SETTINGS)
    training.run_epoch()
    training.save(Path(path))
    task = training.task
    with task.updaters["train"].ema.applied(), torch.no_grad():
        return task.modules["model"].eval()(task.inputs[:8])


@pytest.mark.usefixtures("alone")
def test_sharded_checkpoint_becomes_a_whole_model(pair, tmp_path):
    expected = pair.run(predict_in_trial, str(tmp_path / "epoch.pt"))[0]
    state = checkpoint.load(tmp_path / "epoch.pt")
    reference = f"{__name__}:Split"
    predictor = Predictor(reference, state, "cpu")
    assert np.allclose(predictor(predictor.task.inputs[:8].numpy()), expected.squeeze(1), atol=1e-6)
    predictor.save(tmp_path / "weights.pt")
    again = Predictor.load(tmp_path / "weights.pt", "cpu")
    answers = predictor(predictor.task.inputs[:8].numpy())
    del predictor
    assert np.array_equal(again(again.task.inputs[:8].numpy()), answers), "each predictor must keep its process group"


def copy_trial(rank: int, path: str, settings: dict[str, Any]) -> Any:
    training = make_split(rank, {**SETTINGS, **settings})
    try:
        training.restore(checkpoint.load(Path(path)), of_another=True)
    except ValueError as error:
        return str(error)
    rate = training.task.optimizers["adam"].param_groups[0]["lr"]
    training.run_epoch()
    return training.epoch, rate


def test_sharded_trial_is_copied_with_own_hyperparameters(pair, tmp_path):
    path = str(tmp_path / "epoch.pt")
    pair.run(stop_and_save, SETTINGS, None, path)
    for epoch, rate in pair.run(copy_trial, path, {"lr": 0.03}):
        assert (epoch, rate) == (2, pytest.approx(0.03))
    for message in pair.run(copy_trial, path, {"width": 6}):
        assert message.startswith("model.0.weight of a copy must have the shape")
