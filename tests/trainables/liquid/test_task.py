"""Show what the task `liquid` is scored by, how it resumes, and what it answers."""

import functools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from searchlight.models.data import build_corpus, load
from searchlight.models.liquid.cells import CELLS
from searchlight.trainables import checkpoint
from searchlight.trainables.context import Context
from searchlight.trainables.liquid import LiquidTask, data
from searchlight.trainables.precision import Diverged
from searchlight.trainables.training.predictor import Predictor
from searchlight.trainables.training.trainer import TrialTrainer, train
from tests.trainables.liquid.small_liquid import KEPT, config_of, liquid
from tests.trainables.toy_models import identical, scramble, state, timeless

FIGURES = ("average", "forgetting", "backward_transfer", "forward_transfer", "learning_accuracy")
TEXT_DOMAINS = ("english", "grammar", "math", "python", "tables")
SERIES_DOMAINS = ("sines", "mackey-glass", "lorenz", "spring", "van-der-pol")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small corpus, as `prepare` leaves it."""
    files = tmp_path_factory.mktemp("files")
    build_corpus(files / data.CORPUS, 3000)
    return files


@pytest.fixture
def task_of(texts: Path) -> Any:
    """Makes small tasks, also of text."""

    def make(task_class: type[LiquidTask] = LiquidTask, **config: Any) -> Any:
        context = Context(files=texts) if config.get("data") == "text" else KEPT.for_next_trial()
        return task_class(config_of(**config), context)

    return make


@pytest.mark.slow
def test_replay_forgets_less_than_naive_training():
    sizes = {"width": 16, "units": 16, "samples": 200, "epochs": 5, "test_samples": 400}
    ways = {"joint": {"continual": {"tasks": 1}}, "naive": {"replay": {"fraction": 0.0}}}
    ways["replayed"] = {"replay": {"fraction": 0.5, "size": 100}}
    found = {
        name: [list(train(liquid(**sizes, **way, seed=seed)))[-1] for seed in range(8)] for name, way in ways.items()
    }
    score = {name: np.mean([report["val/score"] for report in reports]) for name, reports in found.items()}
    forgetting = {name: np.mean([each["val/forgetting"] for each in found[name]]) for name in ("naive", "replayed")}
    assert score["joint"] > 0.4
    assert score["naive"] < 0.2
    assert forgetting["naive"] > 0.6
    assert score["replayed"] > score["naive"] + 0.1
    assert forgetting["replayed"] < 0.5


@pytest.mark.parametrize(("cell", "data"), [*((cell, "series") for cell in CELLS), ("cfc", "digits")])
def test_each_cell_trains_with_every_part_switched_on(cell, data):
    """The first updates would fail if a parameter had no gradient."""
    parts: dict[str, Any] = {
        "plasticity": {"rule": "triplet", "meta": True, "stiffness": 1.0},
        "consolidation": {"method": "ewc"},
        "replay": {"logits_weight": 0.5},
        "spiking": {"learn_threshold": True, "rate_weight": 1.0},
    }
    task = liquid(**parts, cell=cell, data=data, dropout=0.1, layers=2, continual={"tasks": 2}, epochs=2, samples=16)
    reports = list(train(task))
    assert all(math.isfinite(value) for report in reports for value in report.values())
    assert {"train/penalty", "train/replay_loss", "train/logits_distance", "train/firing_rate"} < set(reports[1])
    assert 0 < reports[0]["train/firing_rate"] < 1


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
def test_report_has_the_score_and_figures_of_the_matrix(scenario):
    task = liquid(continual={"scenario": scenario, "tasks": 5}, epochs=5, samples=8)
    training = TrialTrainer(task)
    for learned in range(1, 6):
        report = training.run_epoch()
        assert report["val/score"] == pytest.approx(np.mean(task.matrix.rows[-1]))
        assert len(task.matrix.rows) == learned + 1
        assert {name: report[f"val/{name}"] for name in FIGURES} == {
            name: getattr(task.matrix, name) for name in FIGURES
        }
    picture = task.pictures()["matrix"]
    assert (picture.dtype, picture.ndim) == (np.uint8, 3)
    single = TrialTrainer(liquid(continual={"scenario": scenario, "tasks": 1}, epochs=1))
    assert not {f"val/{name}" for name in FIGURES} & set(single.run_epoch())
    assert single.pictures == {}


@pytest.mark.parametrize(("data", "precision"), [("digits", "fp16"), ("series", "bf16"), ("text", "bf16")])
def test_half_precision_trains_the_same_model(data, precision, task_of):
    full, half = (next(train(task_of(data=data, precision=kind, loss_scale=1024.0))) for kind in ("fp32", precision))
    assert half["train/loss"] == pytest.approx(full["train/loss"], rel=0.05)
    assert half["amp/skipped"] == 0


@pytest.mark.parametrize(
    ("data", "error", "domains", "worst"), [("text", "bpb", TEXT_DOMAINS, 8), ("series", "nmse", SERIES_DOMAINS, 1)]
)
def test_score_is_the_share_of_bits_or_variance_saved(data, error, domains, worst, task_of):
    report = next(train(task_of(data=data, epochs=5)))
    assert report[f"val/{error}"] == pytest.approx(np.mean([report[f"val/{error}_{name}"] for name in domains]))
    assert report["val/score"] == pytest.approx(1 - report[f"val/{error}"] / worst)
    assert data == "series" or 1 < report["val/bpb"] < 9


@pytest.mark.parametrize(("name", "worst"), [("text", 8), ("series", 1)])
def test_baseline_is_the_best_simple_model_of_each_domain(name, worst, task_of):
    task = task_of(data=name, epochs=5, test_samples=6)
    report = next(train(task))
    source = load(name, 8, task.files / "corpus")
    tested = [domain._replace(test=domain.test.select_rows(slice(6))) for domain in source.domains]
    best = [min(models.values()) for models in replace(source, domains=tuple(tested)).baselines.values()]
    assert report["val/score_baseline"] == pytest.approx(1 - np.mean(best) / worst)
    assert task.units.keys() - report.keys() == {"val/nmse" if name == "text" else "val/bpb"}


def test_labels_have_no_baseline(task_of):
    assert "val/score_baseline" not in next(train(task_of(data="digits", epochs=5)))


def test_corpus_is_written_once_and_read_by_every_rank(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "build_corpus", lambda folder: build_corpus(folder, 3000))
    config = config_of(data="text")
    LiquidTask.prepare(config, tmp_path)
    monkeypatch.setattr(data, "build_corpus", None)
    digest, inputs = load("text", 8, tmp_path / "corpus").digest, []
    for rank in (0, 1):
        task = LiquidTask(config, Context(rank=rank, world_size=2, files=tmp_path))
        task.build()
        inputs.append(task.stream.samples.inputs)
        named = [] if rank else [("text", digest, "training"), ("text", digest, "evaluation")]
        assert [(data.name, data.digest, data.use) for data in task.named_data] == named
    assert torch.equal(*inputs)
    LiquidTask.prepare(config_of(), tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_missing_corpus_raises_value_error(tmp_path):
    with pytest.raises(ValueError, match=r"data must be text for the whole search, .* but there is no "):
        LiquidTask(config_of(data="text"), Context(files=tmp_path)).build()
    assert not list(tmp_path.iterdir())


class Poisoned(LiquidTask):
    """Its network answers with NaN once it has learned two epochs."""

    def evaluate(self) -> dict[str, float]:
        if len(self.matrix.rows) == 3:
            self.network.head.bias.data[0] = torch.nan
        return super().evaluate()


@pytest.mark.parametrize("data", ["digits", "series", "text"])
def test_evaluation_that_is_not_finite_is_told(data, task_of):  # C105
    task = task_of(Poisoned, data=data, epochs=5, samples=8)
    training = TrialTrainer(task)
    training.run_epoch()
    training.run_epoch()
    rows = [list(row) for row in task.matrix.rows]
    with pytest.raises(Diverged, match="val/score is nan after epoch 3") as caught:
        training.run_epoch()
    assert math.isnan(caught.value.metrics["val/score"])
    assert task.matrix.rows == rows
    assert training.pictures == {}


COMMON: dict[str, Any] = {"continual": {"tasks": 2}, "epochs": 4, "accumulation": 2, "dropout": 0.2}
STREAM: dict[str, Any] = {**COMMON, "consolidation": {"method": "ewc"}, "replay": {"logits_weight": 0.5}}
KEPT_UP: dict[str, dict[str, Any]] = {
    "ewc": {**STREAM, "plasticity": {"rule": "homeostatic", "meta": True}, "precision": "fp16", "ema_decay": 0.9},
    "si": {
        **COMMON,
        "consolidation": {"method": "si"},
        "plasticity": {"rule": "bcm", "meta": True, "stiffness": 1.0},
        "replay": {"logits_weight": 0.5, "balanced": False},
        "layers": 2,
    },
    "text": {**STREAM, "data": "text"},
    "series": {**STREAM, "data": "series"},
}


@pytest.mark.parametrize(
    ("name", "epoch", "window"), [("ewc", 2, 1), ("si", 0, 1), ("si", 3, 2), ("text", 2, 0), ("series", 2, 1)]
)
def test_resumed_trial_equals_one_never_interrupted(tmp_path, task_of, name, epoch, window):
    """Epoch 2 is the first one of the second task; at window 0 the one before it has just ended."""
    straight, stopped, resumed = (TrialTrainer(task_of(**KEPT_UP[name])) for _ in range(3))
    expected = [timeless(straight.run_epoch() or {}) for _ in range(4)]
    final = state(straight)
    for _ in range(epoch):
        stopped.run_epoch()
    if window:
        assert stopped.run_epoch(lambda: stopped.windows >= window) is None
    stopped.save(tmp_path / "stopped.pt")
    held = state(stopped)
    scramble()
    resumed.load(tmp_path / "stopped.pt")
    if window:
        assert identical(state(resumed), held)
    assert identical([timeless(resumed.run_epoch() or {}) for _ in range(epoch, 4)], expected[epoch:])
    assert identical(state(resumed), final)


class Answering(LiquidTask):
    """Gathers a small corpus where there is no search, and remembers what it answered when it was evaluated."""

    @classmethod
    def prepare(cls, config: Any, folder: Path) -> None:
        if config.data == "text":
            build_corpus(folder / data.CORPUS, 3000)

    def evaluate(self) -> dict[str, float]:
        self.answers = self.predict(self.example())
        return super().evaluate()


@pytest.mark.parametrize(
    ("data", "shape", "precision"),
    [("digits", (2, 10), "fp16"), ("text", (2, 8, 256), "bf16"), ("series", (2, 8, 1), "fp32")],
)
def test_saved_model_answers_as_the_trial_did(tmp_path, task_of, data, shape, precision):
    parts: dict[str, Any] = {"ema_decay": 0.9, "plasticity": {"rule": "pair", "meta": True}}
    training = TrialTrainer(task_of(Answering, data=data, precision=precision, **parts))
    training.run_epoch()
    training.save(tmp_path / "epoch-1.pt")
    predictor = Predictor(f"{__name__}:Answering", checkpoint.load(tmp_path / "epoch-1.pt"), "cpu")
    close = functools.partial(np.allclose, atol=1e-5 if precision == "fp32" else 1e-2)
    example = predictor.example()
    answers = predictor(example)
    assert (answers.shape, answers.dtype) == (shape, np.float32)
    assert close(answers, training.task.answers.float().numpy())
    if data == "series":
        assert set(example) == {"inputs", "dt"}
        assert not close(predictor({**example, "dt": 2 * example["dt"]}), answers)
        assert close(predictor(example["inputs"]), predictor({**example, "dt": np.ones_like(example["dt"])}))
    else:
        assert np.array_equal(predictor(example.astype(np.int64) if data == "text" else example), answers)
        assert close(predictor(example[:1]), answers[:1])
