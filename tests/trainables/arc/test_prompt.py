"""Prompts of the ARC task: what learns, what a checkpoint holds, and what one trial leaves to the next."""

import math

import pytest
import torch

from models.arc.prompt import cache as vectors
from tests.models.arc.prompt.conftest import saved as saved
from tests.trainables.arc.small_arc import SMALL, arc, few, moved, weights
from tests.trainables.toy_models import identical, timeless
from trainables import checkpoint
from trainables.arc import ArcTask, data
from trainables.arc.task import ArcConfig
from trainables.context import Context
from trainables.training.trainer import TrialTrainer

MODES = ["frozen", "prefix", "full"]


@pytest.mark.parametrize("fuse", ["gate", "concat", "mean"])
@pytest.mark.parametrize("train", MODES)
def test_the_encoder_learns_in_every_mode_and_its_gradient_is_reported(train, fuse):
    training = TrialTrainer(arc(episodes=8, prompt={"train": train, "fuse": fuse}))
    before = weights(training, "prompt")
    report = training.run_epoch()  # of one window
    norms = training.task.updaters["train"].gradient_norms()
    own = [norm for name, norm in norms.items() if name.startswith("prompt.")]
    assert report["train/prompt_grad_norm"] == pytest.approx(math.hypot(*own))
    assert 0 < report["train/prompt_grad_norm"] < report["train/grad_norm"]
    assert moved(training, "prompt", before) == {True}
    assert any("language" in name for name in before) == (train == "full")
    assert ("prefix" in before) == (train == "prefix")


@pytest.mark.parametrize("train", MODES)
def test_a_checkpoint_holds_a_language_model_only_if_it_learned(tmp_path, train):
    training = TrialTrainer(arc(episodes=8, prompt={"train": train}))
    training.save(tmp_path / "epoch-0.pt")
    held = checkpoint.load(tmp_path / "epoch-0.pt")["modules"]["prompt"]
    assert any("language" in name for name in held) == (train == "full")
    assert all(value.dtype == torch.float32 for value in held.values())


@pytest.mark.parametrize(
    ("train", "precision"), [("frozen", "fp32"), ("prefix", "bf16"), ("full", "fp16")], ids=lambda value: value
)
def test_a_language_model_of_ones_own_is_read_and_trained(saved, train, precision):
    task = arc(episodes=8, precision=precision, prompt={"model": str(saved), "train": train, "text": "grids"})
    training = TrialTrainer(task)
    report = training.run_epoch()
    assert report["train/prompt_grad_norm"] > 0
    assert task.modules["prompt"].text[0].normalized_shape == (32,)
    assert task.text.dtype == (torch.float32 if train == "frozen" else torch.int64)


# From trial to trial


BEFORE = Context()


def build(context, **config):
    task = ArcTask(ArcConfig.model_validate({**SMALL, "max_side": 5, **config}), context.for_next_trial())
    task.build()
    return task


def test_what_was_prepared_is_there_for_the_next_trial_however_it_is_trained(monkeypatch):
    context = BEFORE
    first = build(context)
    monkeypatch.setattr(data, "load_puzzles", lambda *arguments: pytest.fail("puzzles were loaded again"))
    monkeypatch.setattr(vectors, "read_texts", lambda *arguments: pytest.fail("texts were read again"))
    again = build(context, agent_lr=1e-2, seed=3, prompt={"fuse": "concat", "dim": 8}, samples=2, candidates=2)
    assert again.pool is first.pool
    assert again.text is first.text
    assert again.exam.tests is first.exam.tests
    assert again.exam.rehearsals is first.exam.rehearsals
    assert again.exam.test_text is first.exam.test_text
    assert again.exam.rehearsal_text is first.exam.rehearsal_text


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": {"text": "grids"}},
        {"prompt": {"max_tokens": 5}},
        {"prompt": {"train": "prefix"}},
        {"max_side": 4},
        {"views": 3},
        {"rehearsals": 2},
        {"max_demos": 1},
        {"learn_from": "pairs"},
        {"data": ..., "max_side": 6},
        {"evaluation_data": ..., "max_side": 6},
    ],
    ids=str,
)
def test_a_trial_with_other_puzzles_or_texts_does_not_get_those_of_the_one_before(tmp_path, other):
    other = {name: few(tmp_path, evaluation=2) if value is ... else value for name, value in other.items()}
    build(BEFORE)
    second, fresh = build(BEFORE, **other), build(Context(), **other)

    def prepared(task):
        exam = task.exam
        texts = [task.text, exam.test_text, exam.rehearsal_text]
        return [texts, len(task.pool), task.pool.max_demos, len(exam.tests), len(exam.rehearsals), exam.rehearsed]

    assert identical(prepared(second), prepared(fresh))
    assert [puzzle.id for puzzle in second.puzzles] == [puzzle.id for puzzle in fresh.puzzles]


def test_a_trial_does_not_feel_whether_its_texts_were_read_before():
    context = Context()

    def report():
        return timeless(
            TrialTrainer(ArcTask(ArcConfig(**{**SMALL, "max_side": 5}), context.for_next_trial())).run_epoch()
        )

    assert identical(report(), report())


def test_vectors_that_are_kept_on_disk_are_those_that_are_read(tmp_path, monkeypatch):
    folder = tmp_path / "vectors"
    first = build(Context(), prompt={"cache": str(folder)})
    assert len(list(folder.glob("*.npy"))) > len(first.pool)
    monkeypatch.setattr(vectors, "read_texts", lambda *arguments: pytest.fail("texts were read again"))
    second = build(Context(), prompt={"cache": str(folder)})
    assert torch.equal(second.text, first.text)
    assert torch.equal(second.exam.test_text, first.exam.test_text)
