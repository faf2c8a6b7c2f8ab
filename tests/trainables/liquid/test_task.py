"""The task `liquid` from its config to its reports: what it is scored by, how it goes on, what it answers."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.liquid.cells import CELLS
from models.liquid.data import build_corpus, load
from tests.trainables.liquid.small_liquid import KEPT, config_of, liquid
from tests.trainables.toy_models import every_precision, identical, scramble, state, timeless
from trainables import checkpoint
from trainables.context import Context
from trainables.liquid import LiquidTask, data
from trainables.precision import Diverged
from trainables.training.predictor import Predictor
from trainables.training.trainer import TrialTrainer, train

FIGURES = ("average", "forgetting", "backward_transfer", "forward_transfer", "learning_accuracy")
LIQUID = "trainables.liquid:LiquidTask"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small corpus, as `prepare` leaves it."""
    files = tmp_path_factory.mktemp("files")
    build_corpus(files / data.CORPUS, 3000)
    return files


def with_files(files: Path, **config: Any) -> LiquidTask:
    return LiquidTask(config_of(data="text", **config), Context(files=files))


# Learning


def test_it_learns_all_classes_at_once_and_forgets_them_one_after_another_without_replay() -> None:
    sizes = {"width": 16, "units": 16, "samples": 200, "epochs": 5, "test_samples": 400}
    joint = list(train(liquid(**sizes, continual={"tasks": 1})))
    naive = list(train(liquid(**sizes, replay={"fraction": 0.0})))
    replayed = list(train(liquid(**sizes, replay={"fraction": 0.5, "size": 100})))
    assert joint[-1]["val/score"] > 0.4
    assert naive[-1]["val/score"] < 0.2
    assert naive[-1]["val/forgetting"] > 0.6
    assert replayed[-1]["val/score"] > naive[-1]["val/score"] + 0.1
    assert replayed[-1]["val/forgetting"] < 0.5


@pytest.mark.parametrize(("cell", "data"), [*((cell, "series") for cell in CELLS), ("cfc", "digits")])
def test_every_cell_trains_with_every_part_switched_on(cell: str, data: str) -> None:
    """The first update would fail if a parameter had no gradient."""
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
def test_a_report_has_the_score_of_all_tasks_and_the_figures_of_the_matrix(scenario: str) -> None:
    task = liquid(continual={"scenario": scenario, "tasks": 5}, epochs=5, samples=8)
    training = TrialTrainer(task)
    for learned in range(1, 6):
        report = training.run_epoch()
        assert report is not None
        assert report["val/score"] == pytest.approx(np.mean(task.matrix.rows[-1]))
        assert len(task.matrix.rows) == learned + 1
        for name in FIGURES:
            assert report[f"val/{name}"] == getattr(task.matrix, name)
    (picture,) = training.pictures.values() if training.pictures else [task.pictures()["matrix"]]
    assert picture.dtype == np.uint8
    assert picture.ndim == 3


def test_a_single_task_has_no_matrix_to_report_or_to_draw() -> None:
    training = TrialTrainer(liquid(continual={"tasks": 1}, epochs=1))
    report = training.run_epoch()
    assert report is not None
    assert not {f"val/{name}" for name in FIGURES} & set(report)
    assert training.pictures == {}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("data", ["digits", "series", "text"])
def test_half_precision_trains_the_same_model(data: str, precision: str, texts: Path) -> None:
    def report(precision: str) -> dict[str, float]:
        config: dict[str, Any] = {"precision": precision, "loss_scale": 1024.0}
        task = with_files(texts, **config) if data == "text" else liquid(data=data, **config)
        return next(train(task))

    full, half = report("fp32"), report(precision)
    assert half["train/loss"] == pytest.approx(full["train/loss"], rel=0.05)
    assert half["amp/skipped"] == 0


# Bytes and values


def test_text_is_scored_by_the_share_of_its_bits_that_is_saved(texts: Path) -> None:
    report = next(train(with_files(texts, epochs=5)))
    domains = [report[f"val/bpb_{name}"] for name in ("english", "grammar", "math", "python", "tables")]
    assert report["val/bpb"] == pytest.approx(np.mean(domains))
    assert report["val/score"] == pytest.approx(1 - report["val/bpb"] / 8)
    assert 1 < report["val/bpb"] < 9


def test_series_are_scored_by_the_share_of_their_variance_that_is_explained() -> None:
    report = next(train(liquid(data="series", epochs=5)))
    domains = [report[f"val/nmse_{name}"] for name in ("sines", "mackey-glass", "lorenz", "spring", "van-der-pol")]
    assert report["val/nmse"] == pytest.approx(np.mean(domains))
    assert report["val/score"] == pytest.approx(1 - report["val/nmse"])


def test_the_corpus_is_written_once_and_read_by_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "build_corpus", lambda folder: build_corpus(folder, 3000))
    config = config_of(data="text")
    LiquidTask.prepare(config, tmp_path)
    assert sorted(path.stem for path in (tmp_path / "corpus").glob("*.txt"))[0] == "english"
    monkeypatch.setattr(data, "build_corpus", None)
    tasks = [LiquidTask(config, Context(rank=rank, world_size=2, files=tmp_path)) for rank in (0, 1)]
    for task in tasks:
        task.build()
    assert torch.equal(tasks[0].stream.samples.inputs, tasks[1].stream.samples.inputs)
    digest = load("text", 8, tmp_path / "corpus").digest
    assert [(data.name, data.digest, data.use) for data in tasks[0].named_data] == [
        ("text", digest, "training"),
        ("text", digest, "evaluation"),
    ]
    LiquidTask.prepare(config_of(), tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_corpus_with_another_byte_is_refused(tmp_path: Path) -> None:
    build_corpus(tmp_path / data.CORPUS, 3000)
    file = tmp_path / data.CORPUS / "math.txt"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"but math\.txt differs"):
        with_files(tmp_path).build()


def test_a_worker_that_lacks_the_corpus_does_not_gather_one_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data must be text for the whole search, .* but there is no "):
        with_files(tmp_path).build()
    assert not list(tmp_path.iterdir())


def test_data_of_ones_own_are_known_by_what_they_are(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"this is {name} and no other " * 20)
    digests = []
    for _ in range(2):
        task = LiquidTask(config_of(data=str(tmp_path), continual={"tasks": 2}, epochs=2), Context())
        reports = list(train(task))
        digests.append(task.named_data[0].digest)
        assert {"val/bpb_one", "val/bpb_two"} < set(reports[0])
        with (tmp_path / "two.txt").open("a") as file:
            file.write("more")
    assert digests[0] != digests[1]


# Divergence


class Poisoned(LiquidTask):
    """Its network answers with NaN once it has learned two epochs."""

    def evaluate(self) -> dict[str, float]:
        if len(self.matrix.rows) == 3:
            self.network.head.bias.data[0] = torch.nan
        return super().evaluate()


@pytest.mark.parametrize("data", ["digits", "series", "text"])
def test_an_evaluation_that_is_not_finite_is_told_and_kept_out_of_the_matrix(data: str, texts: Path) -> None:  # C105
    config = config_of(data=data, epochs=5, samples=8)
    task = Poisoned(config, Context(files=texts) if data == "text" else KEPT.for_next_trial())
    training = TrialTrainer(task)
    training.run_epoch()
    training.run_epoch()
    rows = [list(row) for row in task.matrix.rows]
    with pytest.raises(Diverged, match="val/score is nan after epoch 3") as caught:
        training.run_epoch()
    assert math.isnan(caught.value.metrics["val/score"])
    assert task.matrix.rows == rows
    assert training.pictures == {}


# Going on


KEPT_UP: dict[str, dict[str, Any]] = {
    "ewc": {
        "consolidation": {"method": "ewc"},
        "plasticity": {"rule": "homeostatic", "meta": True},
        "replay": {"logits_weight": 0.5},
        "precision": "fp16",
        "ema_decay": 0.9,
    },
    "si": {
        "consolidation": {"method": "si"},
        "plasticity": {"rule": "bcm", "meta": True, "stiffness": 1.0},
        "replay": {"logits_weight": 0.5, "balanced": False},
        "layers": 2,
    },
}
COMMON: dict[str, Any] = {"continual": {"tasks": 2}, "epochs": 4, "accumulation": 2, "dropout": 0.2}


@pytest.fixture(scope="module", params=KEPT_UP)
def straight(request: pytest.FixtureRequest) -> tuple[dict[str, Any], list[dict[str, float]], dict[str, Any]]:
    """A trial that was never interrupted: its config, its reports, and what it is in the end."""
    torch.set_num_threads(1)
    config = {**COMMON, **KEPT_UP[request.param]}
    training = TrialTrainer(liquid(**config))
    return config, [timeless(training.run_epoch() or {}) for _ in range(4)], state(training)


@pytest.mark.parametrize(
    ("epoch", "window"),
    [(0, 1), (2, 0), (2, 1), (3, 2)],
    ids=lambda value: str(value),
)
def test_a_trial_that_goes_on_is_the_one_that_was_never_interrupted(
    tmp_path: Path, straight: Any, epoch: int, window: int
) -> None:
    """Epoch 2 is the first one of the second task; at window 0 the one before it has just ended."""
    config, expected, final = straight
    stopped = TrialTrainer(liquid(**config))
    for _ in range(epoch):
        stopped.run_epoch()
    if window:
        assert stopped.run_epoch(lambda: stopped.windows >= window) is None
    stopped.save(tmp_path / "stopped.pt")
    held = state(stopped)
    scramble()
    resumed = TrialTrainer(liquid(**config))
    resumed.load(tmp_path / "stopped.pt")
    if window:
        assert identical(state(resumed), held)
    assert identical([timeless(resumed.run_epoch() or {}) for _ in range(epoch, 4)], expected[epoch:])
    assert identical(state(resumed), final)


@pytest.mark.parametrize("data", ["text", "series"])
def test_a_stream_of_text_or_series_goes_on_too(tmp_path: Path, texts: Path, data: str) -> None:
    def task() -> LiquidTask:
        config: dict[str, Any] = {**COMMON, "consolidation": {"method": "ewc"}, "replay": {"logits_weight": 0.5}}
        return with_files(texts, **config) if data == "text" else liquid(data=data, **config)

    through = TrialTrainer(task())
    expected = [timeless(through.run_epoch() or {}) for _ in range(4)]
    stopped = TrialTrainer(task())
    for _ in range(2):
        stopped.run_epoch()
    assert stopped.run_epoch(lambda: stopped.windows >= 1) is None
    stopped.save(tmp_path / "stopped.pt")
    resumed = TrialTrainer(task())
    resumed.load(tmp_path / "stopped.pt")
    assert identical([timeless(resumed.run_epoch() or {}) for _ in range(2)], expected[2:])


# Answering


class Answering(LiquidTask):
    """Remembers what it answered to the example when it was evaluated."""

    def evaluate(self) -> dict[str, float]:
        self.answers = self.predict(self.example())
        return super().evaluate()


@every_precision
@pytest.mark.parametrize(("data", "shape"), [("digits", (2, 10)), ("text", (2, 8, 256)), ("series", (2, 8, 1))])
def test_a_model_of_it_answers_as_the_trial_did(
    tmp_path: Path, texts: Path, data: str, shape: tuple[int, ...], precision: str
) -> None:
    config = config_of(data=data, precision=precision, ema_decay=0.9, plasticity={"rule": "pair", "meta": True})
    task = Answering(config, Context(files=texts) if data == "text" else KEPT.for_next_trial())
    training = TrialTrainer(task)
    training.run_epoch()
    training.save(tmp_path / "epoch-1.pt")
    saved = checkpoint.load(tmp_path / "epoch-1.pt")
    close = 1e-5 if precision == "fp32" else 1e-2
    predictor = Predictor(SMALL_TEXT if data == "text" else LIQUID, saved, "cpu")
    example = predictor.example()
    answers = predictor(example)
    assert answers.shape == shape
    assert answers.dtype == np.float32
    assert np.allclose(answers, task.answers.float().numpy(), atol=close)
    if data == "series":
        assert set(example) == {"inputs", "dt"}
        slower = predictor({**example, "dt": 2 * example["dt"]})
        even = predictor(example["inputs"])
        ones = predictor({**example, "dt": np.ones_like(example["dt"])})
        assert not np.allclose(slower, answers, atol=close)
        assert np.allclose(even, ones, atol=close)
    else:
        assert np.array_equal(predictor(example.astype(np.int64) if data == "text" else example), answers)
        assert np.allclose(predictor(example[:1]), answers[:1], atol=close)


class SmallText(LiquidTask):
    """Gathers a small corpus where there is no search."""

    @classmethod
    def prepare(cls, config: Any, folder: Path) -> None:
        build_corpus(folder / data.CORPUS, 3000)


SMALL_TEXT = f"{__name__}:SmallText"
