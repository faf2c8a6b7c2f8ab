"""Show what the task `lm` learns from, what it reports, how it resumes, and that shards train as the whole model."""

import math
import os
import shutil
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch._inductor import config as inductor_config
from torch.distributed.tensor import DTensor

from searchlight.models.data import compute_bits_per_byte
from searchlight.models.lm.transformer import Transformer, count_flops
from searchlight.trainables import checkpoint
from searchlight.trainables.context import Context
from searchlight.trainables.lm import LmTask, data
from searchlight.trainables.lm.config import LmConfig
from searchlight.trainables.lm.task import get_peak
from searchlight.trainables.precision import Precision
from searchlight.trainables.training.predictor import Predictor
from searchlight.trainables.update.parameters import get_local
from tests.trainables.lm.small_lm import SMALL, build_small_corpus, make_lm
from tests.trainables.toy_models import distance, every_precision, identical, norm, scramble, state
from tests.trainables.training.trials import run_epochs


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small corpus, as `prepare` leaves it."""
    folder = tmp_path_factory.mktemp("files")
    build_small_corpus(folder)
    return folder


def test_report_has_the_loss_of_all_held_out_bytes(files):
    training = make_lm(files, test_samples=10**6)
    report = training.run_epoch()
    task, test = training.task, training.task.corpus.test.long()
    windows = [test[start : start + 9] for start in range(0, len(test) - 8, 8)]
    with torch.no_grad():
        loss, _ = task._measure(torch.stack(windows))
    assert report["val/bpb"] == pytest.approx(loss.mean().item() / math.log(2), rel=1e-5)
    train = task.corpus.train.numpy()
    assert report["val/bpb_baseline"] == compute_bits_per_byte(train, test.numpy().astype(np.uint8), 5)[-1]
    assert report["time/tokens_per_s"] > 0
    assert "time/mfu" not in report
    assert 4 < report["train/bpb"] < 12


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adamw"}, {"recompute": True}], ids=str)
def test_training_lowers_the_loss(files, settings):
    reports = list(run_epochs(make_lm(files, samples=64, embedding_lr=0.1, **settings), 3))
    assert reports[-1]["val/bpb"] < reports[0]["val/bpb"] - 0.2


@pytest.mark.parametrize(("precision", "bound"), [("bf16", 2e-2), ("fp16", 5e-3)])
def test_half_precision_trains_the_same_model(files, precision, bound):
    full, half = (run_epochs(make_lm(files, precision=kind), 1)[0] for kind in ("fp32", precision))
    assert half["train/loss"] == pytest.approx(full["train/loss"], rel=bound)
    assert half["amp/skipped"] == 0


@every_precision
def test_resumed_trial_equals_one_never_interrupted(files, tmp_path, precision):
    config = {"precision": precision, "ema_decay": 0.9}
    straight, stopped, resumed = (make_lm(files, **config) for _ in range(3))
    expected = run_epochs(straight, 2)
    assert stopped.run_epoch(lambda: stopped.windows >= 1) is None
    stopped.save(tmp_path / "stopped.pt")
    scramble()
    resumed.load(tmp_path / "stopped.pt")
    assert identical(run_epochs(resumed, 2), expected)
    assert identical(state(resumed), state(straight))


def test_accumulated_windows_have_the_gradient_of_the_full_batch(files):
    """By the weights after one update."""
    ways: list[dict[str, Any]] = [{"batch_size": 12, "accumulation": 1}, {"batch_size": 4, "accumulation": 3}]
    once, parts = (make_lm(files, optimizer="adamw", samples=12, **way) for way in ways)
    for training in (once, parts):
        training.run_epoch()
    (whole, pieces) = ([p.detach() for p in training.task.model.parameters()] for training in (once, parts))
    assert distance(pieces, whole) <= 1e-4 * norm(whole)  # Adam divides small gradients by their own size


def count_bytes(task: LmTask) -> int:
    """Return how many bytes this rank has of weights, gradients and moments."""
    tensors = [tensor for p in task.model.parameters() for tensor in (p, p.grad) if tensor is not None]
    states = [state for optimizer in task.optimizers.values() for state in optimizer.state.values()]
    tensors += [value for state in states for value in state.values() if value.dim()]
    return sum(get_local(tensor).nbytes for tensor in tensors)


def train_ranks(rank: int, files: str, ranks: int, config: dict[str, Any]) -> Any:
    """Return the reports, the weights in the end, and the bytes that were held in the last update."""
    training, held = make_lm(Path(files), rank, ranks, **{"optimizer": "adamw", **config}), []
    training.task.optimizers["embedding"].register_step_post_hook(lambda *_: held.append(count_bytes(training.task)))
    reports = run_epochs(training, 2)
    weights = [whole(parameter) for parameter in training.task.model.parameters()]
    training.close()
    return reports, weights, held[-1]


def whole(parameter: Any) -> torch.Tensor:
    return (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach().clone()


@pytest.mark.parametrize(
    ("ranks", "shard", "precision", "memory"),
    [
        ("pair", "full", "fp32", 0.6),
        ("pair", "full", "bf16", 0.6),
        ("pair", "full", "fp16", 0.6),
        ("four", "full", "fp32", 0.35),
        ("four", "hybrid", "fp32", 0.6),
    ],
)
def test_sharded_model_trains_as_replicas_in_less_memory(request, files, ranks, shard, precision, memory):
    """Also where one rank has fewer micro-batches than the others."""
    started = request.getfixturevalue(ranks)
    config: dict[str, Any] = {"precision": precision, "samples": 21}
    replicas = started.run(train_ranks, str(files), started.count, config)
    shards = started.run(train_ranks, str(files), started.count, {**config, "shard": shard, "recompute": True})
    bound = {"fp32": 5e-6, "bf16": 2e-2, "fp16": 5e-3}[precision]
    for (mine, weights, held), (theirs, expected, whole) in zip(shards, replicas, strict=True):
        assert mine == [pytest.approx(report, rel=bound) for report in theirs]
        # Adam divides small gradients by their own size, and so their rounding.
        assert distance(weights, expected) <= 10 * bound * norm(expected)
        assert held <= memory * whole


def train_part(rank: int, files: str, ranks: int, config: dict[str, Any], source: str, epochs: int, target: str) -> Any:
    """Train from the checkpoint `source`, and save one after the first epoch. Return the reports and the weights."""
    training = make_lm(Path(files), rank, ranks, **{"samples": 24, "batch_size": 8 // ranks, "epochs": 3, **config})
    if source:
        training.load(Path(source))
    reports = run_epochs(training, 1)
    if target:
        training.save(Path(target))
    reports += run_epochs(training, epochs - 1)
    weights = [whole(parameter) for parameter in training.task.model.parameters()]
    training.close()
    return reports, weights


def test_checkpoint_goes_from_two_to_one_and_four_ranks(pair, four, files, tmp_path):
    first, second = str(tmp_path / "first.pt"), str(tmp_path / "second.pt")
    full, hybrid = ({"optimizer": "adamw", "shard": shard} for shard in ("full", "hybrid"))
    pair.run(train_part, str(files), 2, full, "", 1, first)
    train_part(0, str(files), 1, full, first, 1, second)
    expected = train_part(0, str(files), 1, {"optimizer": "adamw"}, "", 3, "")
    for (report,), weights in four.run(train_part, str(files), 4, hybrid, second, 1, ""):
        assert report == pytest.approx(expected[0][-1], rel=1e-5)
        assert distance(weights, expected[1]) <= 5e-5 * norm(expected[1])


def test_hybrid_trial_with_muon_resumes_exactly(four, files, tmp_path):
    config, path = {"optimizer": "muon", "shard": "hybrid", "ema_decay": 0.9}, str(tmp_path / "epoch.pt")
    straight = four.run(train_part, str(files), 4, config, "", 3, path)
    resumed = four.run(train_part, str(files), 4, config, path, 2, "")
    for (reports, weights), (expected, same) in zip(resumed, straight, strict=True):
        assert identical(reports, expected[1:])
        assert identical(weights, same)
        assert identical(weights, straight[0][1])


def test_compiled_blocks_of_shards_train_as_plain_ones(files, monkeypatch):
    """Traced as by default, but run without generated code, whose compilation takes minutes."""
    compile_module = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module: compile_module(module, backend="aot_eager"))
    reports = []
    for compiled in (False, True):
        training = make_lm(files, shard="full", compiled=compiled)
        reports += run_epochs(training, 1)
        training.close()  # which ends the process group of a single rank
    assert reports[1] == pytest.approx(reports[0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="inductor needs a C++ compiler and Python's headers",
)
def test_generated_code_of_shards_has_the_plain_gradient(files, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    reports = []
    for compiled in (False, True):
        training = make_lm(files, shard="full", compiled=compiled, depth=1)
        batch = training.task.corpus.train[:36].view(4, 9)
        with inductor_config.patch(compile_threads=1):
            reports.append(training.task.updaters["train"].update([batch], training.task.loss))
        training.close()
    assert (reports[1].loss, reports[1].grad_norm) == pytest.approx((reports[0].loss, reports[0].grad_norm), rel=1e-5)


def test_small_corpus_is_read_from_files_and_folders(files, tmp_path):
    corpus = data.read("text", files)
    folder = data.read(str(files / data.CORPUS), tmp_path)
    assert (folder.digest, folder.baseline) == (corpus.digest, corpus.baseline)
    (tmp_path / "one").write_bytes(bytes(range(250)) * 4)
    single = data.read(str(tmp_path / "one"), tmp_path)
    assert (len(single.train), single.test.tolist()) == (899, [*range(150, 250)][:-1])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"data": "/no/such"}, "must be text, a file, or a folder with .txt files, but got '/no/such'"),
        ({"data": "."}, "data must be a folder with a .txt file"),
        ({"data": "short"}, "data must have at least 90 bytes in each domain for windows of 8, but got 5 in short."),
        ({"width": 10, "heads": 2}, "width must be a multiple of twice the heads, 4, but got 10."),
    ],
    ids=str,
)
def test_settings_that_cannot_train_are_refused(tmp_path, monkeypatch, config, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("short")
    with pytest.raises(ValidationError, match=message.replace("(", r"\(")):
        LmConfig(**{**SMALL, **config})


def test_missing_corpus_raises_value_error(tmp_path):
    with pytest.raises(ValueError, match=r"data must be text for the whole search, .* but there is no "):
        LmTask(LmConfig(**SMALL), Context(files=tmp_path)).build()


class Prepared(LmTask):
    """Gathers less text where there is no search."""

    @classmethod
    def prepare(cls, config: LmConfig, folder: Path) -> None:
        build_small_corpus(folder)


def test_saved_model_answers_logits_of_the_next_byte(files, tmp_path):
    training = make_lm(files)
    training.run_epoch()
    training.save(tmp_path / "epoch-1.pt")
    predictor = Predictor(f"{__name__}:Prepared", checkpoint.load(tmp_path / "epoch-1.pt"), "cpu")
    answers = predictor(predictor.example())
    assert answers.shape == (1, 8, 256)
    again = training.task.predict(training.task.example()).detach().numpy()
    assert np.allclose(answers, again, atol=1e-5)


def test_flops_and_peaks_are_those_of_the_definitions(monkeypatch):
    model = Transformer(width=12, depth=3, heads=2)
    counted = 256 * 12 + 3 * (4 * 12 * 12 + 3 * 12 * 32)
    assert count_flops(model, 16) == 6 * counted + 12 * 3 * 12 * 16
    assert get_peak(torch.device("cpu"), Precision.FP32) is None


@pytest.mark.parametrize(
    ("name", "processors", "precision", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 132, "BF16", 989e12),
        ("NVIDIA A100-SXM4-80GB", 108, "BF16", 312e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14, "BF16", 312e12 * 14 / 108),
        ("NVIDIA A10G", 80, "FP32", 35e12),
        ("NVIDIA A10", 72, "FP16", 125e12),
        ("NVIDIA GeForce RTX 4090", 128, "FP32", 82.6e12),
        ("Other", 80, "BF16", None),
    ],
)
def test_peak_is_that_of_the_slice_or_whole_gpu(monkeypatch, name, processors, precision, expected):
    found = SimpleNamespace(name=name, multi_processor_count=processors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    assert get_peak(torch.device("cuda"), Precision[precision]) == expected


def test_split_micro_batches_give_the_same_training(files):
    config = {**SMALL, "accumulation": 1, "samples": 21}  # the last micro-batch is smaller
    split = LmConfig(**config).split_micro_batches()
    assert split == {"batch_size": 2, "accumulation": 2}
    reports = [list(run_epochs(make_lm(files, **{**config, **changed}), 2)) for changed in ({}, split)]
    for whole, parts in zip(*reports, strict=True):
        assert parts["val/bpb"] == pytest.approx(whole["val/bpb"], rel=1e-5)
        assert parts["train/updates"] == whole["train/updates"]
